"""Changed results are refused by name, whatever their time stamps say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.base import Schema
from schemas.errors import ConfigError
from transformer_core.common import digests
from transformer_core.common.digests import (
    NAME,
    check,
    check_all,
    forget,
    forget_all,
    record,
    write_result,
)
from transformer_core.common.records import read_as, read_record
from transformer_core.common.tables import read_table, write_table


class Speed(Schema):
    """A record."""

    variant: str
    tokens_per_second: float


CHANGED = "has changed since it was made"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def made(path: Path, variant: str, *made_from: Path, speed: float = 1234.5) -> Path:
    text = Speed(variant=variant, tokens_per_second=speed).model_dump_json() + "\n"
    write_result(path, text, made_from)
    return path


def change(path: Path) -> None:
    """Changes a number, but neither length nor time stamps."""
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"1234.5", b"1334.5"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_changed_number_is_refused_with_the_remedy(results):
    path = made(results / "ddp.json", "ddp")
    assert read_record(path, Speed) == Speed(variant="ddp", tokens_per_second=1234.5)
    change(path)
    with pytest.raises(ConfigError, match=CHANGED) as found:
        read_record(path, Speed)
    (problem,) = found.value.problems
    assert problem.file == str(path)
    again = f"make it again: snakemake --cores all {path} --forcerun {path}"
    assert problem.remedy.startswith(f"{again}; ")
    assert problem.remedy.endswith(f"rm {results}/{NAME}")
    (results / NAME).unlink()  # follows the remedy
    assert read_record(path, Speed).tokens_per_second == 1334.5


@pytest.mark.parametrize(("suffix", "again"), [("json", True), ("yaml", False)])
def test_only_files_of_the_workflow_are_to_be_made_again(tmp_path, suffix, again):
    path = tmp_path / f"ddp.{suffix}"
    path.write_text('{"variant": "ddp"}')
    with pytest.raises(ConfigError) as found:
        read_record(path, Speed)
    (problem,) = found.value.problems
    assert problem.field == "tokens_per_second"
    assert ("make it again" in problem.remedy) == again


@pytest.mark.parametrize("folder", ["", "profiles/ddp"])
def test_an_older_result_is_refused(results, folder):
    beside = made(results / folder / "beside.json", "beside")
    path = made(results / folder / "found.json", "ddp")
    older = shutil.copy2(path, results.with_name("older.json"))
    digests = shutil.copy2(results / folder / NAME, results.with_name("digests.json"))
    made(path, "ddp", speed=2000.0)
    made(beside, "beside", speed=2.0)

    shutil.copy2(older, path)
    with pytest.raises(ConfigError, match=CHANGED):
        check(path)
    shutil.copy2(digests, results / folder / NAME)
    with pytest.raises(ConfigError, match="beside"):
        check_all([path, beside])


def test_a_copy_of_another_run_is_refused_by_name(results):
    ddp, amp = (made(results / f"runs/{name}/metrics.json", name) for name in ("ddp", "amp"))
    shutil.copy2(ddp, amp)
    with pytest.raises(ConfigError, match=CHANGED):
        read_record(amp, Speed)
    shutil.copy2(ddp.with_name(NAME), amp.with_name(NAME))
    belongs = f"belongs to runs/ddp, but was copied to {amp.parent}"
    with pytest.raises(ConfigError, match=belongs):
        read_record(amp, Speed)
    # The digests of the other folder need not name the file.
    other = shutil.copy2(amp, amp.with_name("evaluation.json"))
    with pytest.raises(ConfigError, match=belongs):
        read_record(other, Speed)


def test_a_path_may_be_relative_or_absolute_and_results_may_be_moved(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    path = made(Path("results/ddp.json"), "ddp")
    check(path)
    made(path.absolute(), "another")
    assert check(path.absolute()) == check(path)
    moved = results.rename(results.with_name("results-default"))
    assert read_record(moved / "ddp.json", Speed).variant == "another"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"of": 1}', '{"of": "", "files": {"x": 3}}'])
def test_a_damaged_file_of_digests_blocks_nothing(results, content):
    path = made(results / "ddp.json", "ddp")
    (results / NAME).write_text(content)
    assert read_record(path, Speed).variant == "ddp"
    other = made(results / "amp.json", "amp")
    change(other)
    with pytest.raises(ConfigError, match=CHANGED):
        check(other)


def test_results_of_different_inputs_are_refused_together(results):
    spec = made(results / "runs/ddp/spec.json", "spec")
    before = made(results / "pairs/single/ddp.json", "ddp", spec)
    check_all([spec, before])
    made(spec, "another spec")
    after = made(results / "runs/ddp/metrics.json", "ddp", spec)
    check_all([spec, after])
    for first, second, named in ((before, spec, before), (spec, before, before)):
        forget_all()
        with pytest.raises(ConfigError, match="was made from a different runs/ddp/spec") as found:
            check_all([first, second])
        assert found.value.problems[0].file == str(named)
    forget_all()
    with pytest.raises(ConfigError, match=f"different runs/ddp/spec.json than {before}") as found:
        check_all([before, after])
    assert found.value.problems[0].file == str(after)


def test_a_result_records_what_was_read_as_its_inputs(results):
    spec, other = made(results / "spec.json", "spec"), made(results / "other.json", "other")
    read_record(spec, Speed)
    entry = check(made(results / "metrics.json", "ddp"))
    assert set(entry.made_from) == {"spec.json"}
    made(other, "changed")
    check_all([spec, other, results / "metrics.json"])
    # Not what was used to make these: each result answers for its own inputs.
    forget_all()
    read_record(results / "metrics.json", Speed)
    assert set(check(made(results / "report.json", "ddp")).made_from) == {"metrics.json"}
    made(spec, "changed")
    with pytest.raises(ConfigError, match="metrics"):
        check_all([spec, results / "metrics.json"])


def test_a_file_that_is_about_to_be_made_again_has_no_digest(results):
    path = made(results / "ddp.json", "ddp")
    forget(path)
    change(path)
    assert check(path) is None


def test_another_process_may_make_a_result_again_that_this_one_has_read(results):
    path = made(results / "ddp.json", "ddp")
    before = check(path)
    subprocess.run([sys.executable, "-m", digests.__name__, path, "another"], check=True)
    assert check(path) != before


def test_jobs_that_write_into_one_folder_together_keep_all_digests(results):
    paths = [results / f"{number}.json" for number in range(60)]
    write = "import pathlib, sys; from {0} import write_result; [write_result(pathlib.Path(p), p) for p in sys.argv[1:]]"
    command = [sys.executable, "-c", write.format(digests.__name__)]
    jobs = [subprocess.Popen([*command, *paths[number::3]]) for number in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    for path in paths:
        path.write_text("changed")
        with pytest.raises(ConfigError, match=CHANGED):
            check(path)


def test_a_changed_table_is_refused(results):
    path = results / "steps.parquet"
    write_table(path, pa.table({"step": [1, 2], "loss": [5.0, 4.0]}), compression="none")
    assert read_table(path, ["loss"]).column("loss").to_pylist() == [5.0, 4.0]
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(ConfigError, match=CHANGED):
        read_table(path)
    path.write_bytes(b"PAR1")
    record(path)
    with pytest.raises(ConfigError, match=str(path)):
        read_table(path)


def test_a_pipe_or_a_device_in_place_of_a_result_is_refused(results):
    for name, sealed in (("spec.json", True), ("hardware.json", False), ("steps.parquet", False)):
        path = made(results / name, "ddp")
        path.unlink()
        if not sealed:
            forget(path)
        os.mkfifo(path)
        with pytest.raises(ConfigError, match="not a regular file"):
            read_table(path) if path.suffix == ".parquet" else read_as(path, Speed)
    zero = results / "zero.json"
    zero.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_record(zero, Speed)
