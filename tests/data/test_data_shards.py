"""Tokenized splits as Arrow shards."""

import re
import resource
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_files import (
    ENGLISH,
    GERMAN,
    corpus,
    decoded,
    gather,
    read_split,
    steady,
    write_pairs,
    write_shards,
    write_table,
    write_tokenizer,
)

from schemas.config.data import Filter
from schemas.results import ShardManifest, ShardProgress
from tests.orders import job_command, run_job
from transformer_core.common.digests import NAME
from transformer_core.common.files import sha256
from transformer_core.data.corpus.pairs import PairFile
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding import job
from transformer_core.data.sharding.shard_store import ShardError, open_shards

ROOT = Path(__file__).resolve().parents[2]


def same(left, right):
    """Whether manifests are equal but for the time that they took."""
    return left == right.model_copy(update={"seconds": left.seconds})


@settings(steady, max_examples=15)
@given(
    pairs=st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=12),
    per_shard=st.integers(1, 14),
    data=st.data(),
)
def test_round_trip_in_any_number_of_shards(tokenizer, pairs, per_shard, data):
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_pairs(folder / "p.arrow", sources, targets)
        written = write_shards(file, tokenizer, Filter(), folder / "out", per_shard)
        store = open_shards(folder / "out" / "manifest.json")
        assert store.manifest == written
        assert len(store) == len(pairs)
        assert len(written.shards) == -(-len(pairs) // per_shard)
        rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=20))
        assert decoded(tokenizer, store.source_rows(rows)) == [sources[row] for row in rows]
        assert decoded(tokenizer, store.target_rows(rows)) == [targets[row] for row in rows]
        spans = np.array([[row, row + 2] for row in rows if row + 2 <= len(pairs)], np.int64)
        spans = spans.reshape(-1, 2)
        twice = np.array([row + n for row in spans[:, 0] for n in range(2)], np.int64)
        for side in (store.source, store.target):
            gathered, read = side.gather(twice), side.read(spans)
            assert read.flat().tolist() == gathered.flat().tolist()
            assert read.lengths.tolist() == gathered.lengths.tolist()
            assert read.lengths.tolist() == side.lengths(spans).tolist()
            assert side.lengths(spans).dtype == np.int32


def test_manifest_adds_up(made):
    store = open_shards(made / "shards" / "manifest.json")
    manifest = store.manifest
    assert (manifest.corpus, manifest.split, manifest.id_type) == ("small", "train", "uint16")
    assert [shard.pairs for shard in manifest.shards] == [25, 25, 10]
    for side in ("source", "target"):
        lengths = getattr(store, side).lengths(np.array([[0, 60]]))
        assert getattr(manifest, f"{side}_tokens") == lengths.sum()
        assert sum(getattr(shard, f"{side}_tokens") for shard in manifest.shards) == lengths.sum()
        values, counts = np.unique(lengths, return_counts=True)
        histogram = getattr(manifest.lengths, side)
        assert histogram == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert manifest.vocabulary == 320
    assert sorted(path.name for path in (made / "shards").iterdir()) == [
        *(NAME, "manifest.json"),
        *(shard.file for shard in manifest.shards),
    ]


LONG = "Straße " * 40
NOT_LONG = Filter(max_tokens=60)


@pytest.fixture
def some_long(tmp_path):
    """36 pairs, of which four are too long."""
    sources, targets = [*ENGLISH, LONG, *GERMAN] * 4, [*GERMAN, "kurz", *ENGLISH] * 4
    return write_pairs(tmp_path / "p.arrow", sources, targets)


def test_too_long_pairs_are_skipped_and_reported(tmp_path, tokenizer):
    sources, targets = [*ENGLISH, LONG, "a", "b"], [*GERMAN, "kurz", LONG, "b"]
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    manifest = write_shards(file, tokenizer, NOT_LONG, tmp_path)
    assert (manifest.pairs, manifest.skipped_too_long) == (5, 2)
    assert [example.where for example in manifest.examples] == ["corpus.en:15", "corpus.de:16"]
    assert all(LONG.startswith(example.text[:-3]) for example in manifest.examples)
    store = open_shards(tmp_path / "manifest.json")
    assert decoded(tokenizer, store.target_rows(range(5))) == [*GERMAN, "b"]


def test_a_pair_in_one_of_several_files_is_named_as_when_it_is_read(tmp_path, tokenizer):
    """Rows count through all files of a split."""
    for number in range(2):
        rows = {"source": ["a", LONG if number else ""], "target": ["b", "kurz"]}
        write_table(tmp_path / f"train-{number}.parquet", pa.table(rows))
    pairs, rules = tmp_path / "p.arrow", Filter(max_tokens=20, empty="skip")
    report = read_split(
        corpus("datasets", folder=str(tmp_path)), rules, "train", pairs, tmp_path / "p.json"
    )
    manifest = write_shards(PairFile(pairs), tokenizer, rules, tmp_path / "out")
    found = [example.where for example in (*report.examples, *manifest.examples)]
    assert found == [f"{tmp_path}, split train:{row}" for row in (2, 4)]


@pytest.mark.parametrize("pair", [("x1x2", "x"), ("x", "x1x2")])
def test_limit_counts_tokens_without_ends(tmp_path, tokenizer, pair):
    file = write_pairs(tmp_path / "p.arrow", pair[:1], pair[1:])
    manifest = write_shards(file, tokenizer, Filter(max_tokens=4), tmp_path)
    assert manifest.source_tokens + manifest.target_tokens == 5
    with pytest.raises(CorpusError, match="no pair is left"):
        write_shards(file, tokenizer, Filter(max_tokens=3), tmp_path)


def test_only_the_first_examples_are_kept(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(job, "_PIECE", 150)
    file = write_pairs(tmp_path / "p.arrow", [*ENGLISH * 5, "a"], [*GERMAN * 5, "a"])
    manifest = write_shards(file, tokenizer, Filter(max_tokens=2), tmp_path)
    assert manifest.skipped_too_long == 20
    lines = [f"corpus.en:{line}" for line in range(11, 21)]
    assert [example.where for example in manifest.examples] == lines


def contents(folder):
    """The bytes of the shards, by name."""
    return {path.name: path.read_bytes() for path in folder.glob("shard-*")}


def test_pieces_and_threads_change_nothing(tmp_path, tokenizer, some_long, monkeypatch):
    whole = write_shards(some_long, tokenizer, NOT_LONG, tmp_path / "a", 13)
    monkeypatch.setattr(job, "_PIECE", 90)
    pieces = write_shards(some_long, tokenizer, NOT_LONG, tmp_path / "b", 13, threads=3)
    assert same(pieces, whole)
    assert [shard.pairs for shard in whole.shards] == [13, 13, 6]


def test_long_sentences_make_smaller_shards(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(job, "_TOKENS_PER_SHARD", 100)
    monkeypatch.setattr(job, "_PIECE", 100)
    file = write_pairs(tmp_path / "p.arrow", ENGLISH * 3, GERMAN * 3)
    manifest = write_shards(file, tokenizer, Filter(), tmp_path / "out")
    assert len(manifest.shards) > 3
    assert manifest.pairs == 12


def test_the_old_manifest_is_deleted_before_shards_change(tmp_path, tokenizer, monkeypatch):
    file = write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)
    write_shards(file, tokenizer, Filter(), tmp_path, 2)
    monkeypatch.setattr(job, "_write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_shards(file, tokenizer, Filter(), tmp_path, 2)
    assert not (tmp_path / "manifest.json").exists()
    assert not list(tmp_path.glob(".*.tmp"))


def order(folder, tokenizer, **fields):
    """The fields of a job that writes the shards of p.arrow to out."""
    files = {"tokenizer": tokenizer, "pairs": folder / "p.arrow", "output": folder / "out"}
    return {"kind": "shards", "filter": {}} | files | fields


def test_job(tmp_path, tokenizer, capsys):
    write_pairs(tmp_path / "p.arrow", ENGLISH, GERMAN)

    def run(rules, **fields):
        code = run_job(**order(tmp_path, tokenizer, filter=rules, pairs_per_shard=3, **fields))
        return code, capsys.readouterr().err

    def manifest():
        return ShardManifest.model_validate_json((tmp_path / "out/manifest.json").read_text())

    assert run(Filter())[0] == 0
    assert [shard.pairs for shard in manifest().shards] == [3, 1]
    refused = run({"max_tokens": 2, "too_long": "error"})[1]
    assert re.search(r"corpus\.en:11: the source has \d+ tokens, more than", refused)
    assert "filter.too_long: skip" in refused
    assert not (tmp_path / "out/manifest.json").exists()
    for part in ("0-of-2", "3-of-2", "2", "1-of-0"):
        code, said = run({}, part=part)
        assert code == 1
        assert "part" in said
    assert run({}, part="2-of-2")[0] == 0
    assert manifest().pairs == 2
    assert "did you mean max_tokens" in run({"max_token": 2})[1]
    (tmp_path / "p.json").unlink()
    assert "p.json" in run({})[1]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_parts_make_up_the_split(tmp_path, tokenizer, some_long, count):
    whole = write_shards(some_long, tokenizer, NOT_LONG, tmp_path / "whole", 5)
    out = tmp_path / "out"
    # Leftovers of an earlier job of the whole split, or of more parts.
    for stale in (out / "shard-00000.arrow", out / "part-009" / "shard-00000.arrow"):
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.touch()
    paths = [out / f"part-{number:03}" / "manifest.json" for number in range(count)]
    for number, path in enumerate(paths):
        write_shards(some_long, tokenizer, NOT_LONG, path.parent, 5, (number, count))
    manifest = gather(paths, NOT_LONG, out / "manifest.json")
    files = {"shards": whole.shards, "seconds": whole.seconds}
    assert manifest.model_copy(update=files) == whole
    store, expected = (open_shards(at / "manifest.json") for at in (out, tmp_path / "whole"))
    rows = np.arange(len(expected))
    for side in ("source", "target"):
        joined, alone = (getattr(one, side).gather(rows) for one in (store, expected))
        np.testing.assert_array_equal(joined.flat(), alone.flat())
        np.testing.assert_array_equal(joined.lengths, alone.lengths)
    assert {path.relative_to(out) for path in out.rglob("*.arrow")} == {
        Path(shard.file) for shard in manifest.shards
    }
    assert {path.name for path in out.glob("part-*")} == {path.parent.name for path in paths}
    # And one job again.
    write_shards(some_long, tokenizer, NOT_LONG, out, 5)
    assert not list(out.glob("part-*"))
    assert len(open_shards(out / "manifest.json")) == len(expected)


def test_a_part_may_be_empty_but_not_all_nor_missing(tmp_path, tokenizer):
    file = write_pairs(tmp_path / "p.arrow", ["Straße " * 9, "a"], ["b", "b"])
    paths = [tmp_path / f"part-{number:03}" / "manifest.json" for number in range(3)]
    rules = Filter(max_tokens=10)
    for number, path in enumerate(paths):
        write_shards(file, tokenizer, rules, path.parent, part=(number, 3))
    manifest = gather(paths, rules, tmp_path / "manifest.json")
    assert (manifest.pairs, manifest.skipped_too_long) == (1, 1)
    assert [shard.file for shard in manifest.shards] == ["part-002/shard-00000.arrow"]
    with pytest.raises(CorpusError, match="no pair is left"):
        gather(paths[:2], rules, tmp_path / "manifest.json")
    paths[2].unlink()
    with pytest.raises(ShardError, match=r"part-002.*: cannot be read") as found:
        gather(paths, rules, tmp_path / "manifest.json")
    assert found.value.remedy.startswith("make it again: snakemake")


class KilledError(Exception):
    pass


@contextmanager
def killed_after(monkeypatch, shards):
    """Kills a job after it has written so many shards."""
    write, left = job._write, iter(range(shards))

    def until(*arguments):
        if next(left, None) is None:
            raise KilledError
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(job, "_write", until)
        yield


@pytest.fixture
def encoded(monkeypatch):
    """The numbers of pairs in each call of the encoder."""
    counts, encode = [], job._encode
    monkeypatch.setattr(job, "_encode", lambda *a: counts.append(a[2].num_rows) or encode(*a))
    return counts


@pytest.mark.parametrize("shards", [1, 4])
def test_a_killed_job_resumes_and_writes_the_same_shards(
    tmp_path, tokenizer, monkeypatch, encoded, shards
):
    sources, targets = [*ENGLISH, LONG, *GERMAN, "a"] * 4, [*GERMAN, "b", *ENGLISH, LONG] * 4
    file = write_pairs(tmp_path / "p.arrow", sources, targets)
    monkeypatch.setattr(job, "_PIECE", 300)
    whole = write_shards(file, tokenizer, NOT_LONG, tmp_path / "whole", 5)
    assert len(whole.shards) == 7
    out = tmp_path / "out"
    with killed_after(monkeypatch, shards), pytest.raises(KilledError):
        write_shards(file, tokenizer, NOT_LONG, out, 5)
    assert not (out / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    assert len(kept) == shards
    (out / ".shard-00003.arrow.123.tmp").write_bytes(b"torn")
    encoded.clear()
    before = ShardProgress.model_validate_json((out / "progress.json").read_text())
    starts, start = [], job.Progress.start
    monkeypatch.setattr(job.Progress, "start", lambda *a: starts.append(a[1:]) or start(*a))
    found = write_shards(file, tokenizer, NOT_LONG, out, 5)
    assert same(whole, found)
    assert starts == [(before.next_pair,)], "the time left follows from this job's speed"
    assert found.seconds > before.manifest.seconds > 0, "the killed job's time counts"
    assert 0 < sum(encoded) <= 40 - 5 * shards
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert contents(out) == contents(tmp_path / "whole")
    names = [{path.name for path in folder.iterdir()} for folder in (out, tmp_path / "whole")]
    assert names[0] == names[1]


@pytest.mark.parametrize("change", ["rules", "shards", "pairs", "tokenizer", "code", "damage"])
def test_different_work_or_damaged_shards_start_from_scratch(
    tmp_path, tokenizer, monkeypatch, encoded, change
):
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
    encoded.clear()
    found = write_shards(file, tokenizer, rules, out, per_shard)
    assert sum(encoded) == 20
    assert same(found, write_shards(file, tokenizer, rules, tmp_path / "fresh", per_shard))
    fresh = contents(tmp_path / "fresh")
    assert {name: found for name, found in contents(out).items() if name in fresh} == fresh


@pytest.mark.slow
def test_kill_9_leaves_only_complete_shards(tmp_path, tokenizer):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 3_000, GERMAN * 3_000, batch=3_000)
    out, work = tmp_path / "out", order(tmp_path, tokenizer, pairs_per_shard=50, threads=2)
    running = subprocess.Popen(job_command(**work), cwd=ROOT, stderr=subprocess.DEVNULL)
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
    assert run_job(**work) == 0
    store = open_shards(out / "manifest.json")
    assert len(store) == 12_000
    assert decoded(tokenizer, store.target_rows([0, 11_999])) == [GERMAN[0], GERMAN[-1]]


def test_a_full_disk_leaves_no_manifest(tmp_path, tokenizer, capsys):
    write_pairs(tmp_path / "p.arrow", ENGLISH * 500, GERMAN * 500)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        assert run_job(**order(tmp_path, tokenizer, pairs_per_shard=1000)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    for words in (
        "File too large",
        "shard-00000.arrow: cannot be written",
        "remedy: free disk space",
    ):
        assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("*.arrow"))
    assert not list((tmp_path / "out").glob(".*"))
