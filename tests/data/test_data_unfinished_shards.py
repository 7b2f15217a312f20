"""Shards of a job that was killed, or could not write: the same command goes on from whole ones."""

import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pair_files import ENGLISH, GERMAN, decoded, write_pairs, write_tokenizer

from schemas.config.corpus import Filter
from schemas.results import ShardProgress
from transformer_core.common.files import sha256
from transformer_core.data.sharding import job, shard_writer
from transformer_core.data.sharding.job import write_shards
from transformer_core.data.sharding.shard_store import open_shards

ROOT = Path(__file__).resolve().parents[2]


class KilledError(Exception):
    pass


@contextmanager
def killed_after(monkeypatch, shards):
    """Let a job end after it has written so many shards."""
    write, left = shard_writer._write, iter(range(shards))

    def until(*arguments):
        if next(left, None) is None:
            raise KilledError
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "_write", until)
        yield


def same(left, right):
    return left == right.model_copy(update={"seconds": left.seconds})


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_killed_job_goes_on_and_ends_like_any_other(tmp_path, tokenizer, monkeypatch, shards):
    long = "Straße " * 40
    sources, targets = [*ENGLISH, long, *GERMAN, "a"] * 4, [*GERMAN, "b", *ENGLISH, long] * 4
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    rules = Filter(max_tokens=60)
    monkeypatch.setattr(job, "_PIECE", 300)
    whole = write_shards(file, tokenizer, rules, tmp_path / "whole", 5)
    assert len(whole.shards) == 7
    out = tmp_path / "out"
    with killed_after(monkeypatch, shards), pytest.raises(KilledError):
        write_shards(file, tokenizer, rules, out, 5)
    assert not (out / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    assert len(kept) == shards
    (out / ".shard-00003.arrow.123.tmp").write_bytes(b"torn")

    encoded = []
    encode = job._encode
    monkeypatch.setattr(job, "_encode", lambda *a: encoded.append(a[1].num_rows) or encode(*a))
    assert same(whole, write_shards(file, tokenizer, rules, out, 5))
    assert 0 < sum(encoded) <= 40 - 5 * shards
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    for path in (tmp_path / "whole").glob("shard-*"):
        assert (out / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in out.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


@pytest.mark.parametrize("change", ["rules", "shards", "pairs", "tokenizer", "code", "damage"])
def test_other_work_or_damaged_shards_begin_anew(tmp_path, tokenizer, monkeypatch, change):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH * 5, GERMAN * 5)
    out = tmp_path / "out"
    with killed_after(monkeypatch, 3), pytest.raises(KilledError):
        write_shards(file, tokenizer, Filter(), out, 3)
    rules, per_shard = Filter(), 3
    match change:
        case "rules":
            rules = Filter(max_tokens=100)
        case "shards":
            per_shard = 4
        case "pairs":
            file = write_pairs(tmp_path / "p.arrow", ENGLISH * 5, [*GERMAN * 4, *ENGLISH])
        case "tokenizer":
            (tmp_path / "other").mkdir()
            tokenizer = write_tokenizer(tmp_path / "other", 330)
        case "code":
            monkeypatch.setattr(job, "_code", lambda: ["other"])
        case "damage":
            shard = out / "shard-00001.arrow"
            shard.write_bytes(bytes(shard.stat().st_size))
    encoded = []
    encode = job._encode
    monkeypatch.setattr(job, "_encode", lambda *a: encoded.append(a[1].num_rows) or encode(*a))
    found = write_shards(file, tokenizer, rules, out, per_shard)
    assert sum(encoded) == 20
    assert same(found, write_shards(file, tokenizer, rules, tmp_path / "fresh", per_shard))
    for path in (tmp_path / "fresh").glob("shard-*"):
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_finished_job_that_is_forced_begins_anew(tmp_path, tokenizer, monkeypatch):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH * 5, GERMAN * 5)
    write_shards(file, tokenizer, Filter(), tmp_path / "out", 3)
    written = []
    write = shard_writer._write
    monkeypatch.setattr(shard_writer, "_write", lambda *a: written.append(a[0]) or write(*a))
    write_shards(file, tokenizer, Filter(), tmp_path / "out", 3)
    assert len(written) == 7


def test_the_job_does_not_wait_for_pandas(tmp_path, tokenizer):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 50, GERMAN * 50)
    program = (
        "import sys; from transformer_core.data.sharding.job import main; code = main();"
        " sys.exit(code or 'pandas' in sys.modules)"
    )
    command = [
        *(sys.executable, "-c", program, "--filter", "{}", "--tokenizer", str(tokenizer)),
        *("--pairs", str(tmp_path / "p.arrow"), "--output", str(tmp_path / "out")),
    ]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_kill_9_leaves_whole_shards_only(tmp_path, tokenizer):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 10_000, GERMAN * 10_000, batch=10_000)
    out = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "transformer_core.data.sharding.job", "--filter", "{}"),
        *("--tokenizer", str(tokenizer), "--pairs", str(tmp_path / "p.arrow")),
        *("--output", str(out), "--pairs-per-shard", "500", "--threads", "2"),
    ]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (out / "progress.json").exists() and time.monotonic() < end:
        time.sleep(0.005)
    running.kill()
    running.wait()
    assert not (out / "manifest.json").exists(), "killed too late to show anything"
    progress = ShardProgress.model_validate_json((out / "progress.json").read_text())
    assert progress.manifest.shards
    for shard in progress.manifest.shards:
        assert sha256(out / shard.file) == shard.sha256
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    store = open_shards(out / "manifest.json")
    assert len(store) == 40_000
    assert decoded(tokenizer, store.target_rows([0, 39_999])) == [GERMAN[0], GERMAN[-1]]


@pytest.mark.parametrize("size", [1_000, 20_000])
def test_a_full_disk_leaves_no_manifest(tmp_path, tokenizer, size):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 500, GERMAN * 500)
    command = [
        *(sys.executable, "-m", "transformer_core.data.sharding.job", "--filter", "{}"),
        *("--tokenizer", str(tokenizer), "--pairs", str(tmp_path / "p.arrow")),
        *("--output", str(tmp_path / "out"), "--pairs-per-shard", "1000"),
    ]

    def no_large_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        command, cwd=ROOT, preexec_fn=no_large_files, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "shard-00000.arrow: cannot be written" in done.stderr
    assert "remedy: make room" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("*.arrow"))
    assert not list((tmp_path / "out").glob(".*"))
