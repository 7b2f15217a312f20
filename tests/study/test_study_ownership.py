"""Results of another study are neither overwritten nor reused; one Snakemake at a time works."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from schemas.config.study import Study
from schemas.errors import WHOLE_FILE, ConfigError
from tests.refusals import problem_of
from transformer_core.study.ownership import (
    check_foreign,
    check_owner,
    check_records,
    check_results,
    check_writable,
    mark_owner,
)

STUDY = Study.model_validate({"name": "mine", "variants": ["single"]})
PLACE = "results/study.json"
MADE = '{"name":"it\'s {mine}","training":{"steps":60}}'
PLANNED = '{"name":"it\'s {mine}","training":{"steps":80}}'


@pytest.fixture(autouse=True)
def _study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path(PLACE).write_text(f"{MADE}\n")


def check(planned: str = PLANNED) -> None:
    check_foreign({PLACE: planned}, "config/config.yaml", Path(".snakemake"))


def test_results_of_another_study_without_metadata_are_refused():
    problem = problem_of(check)
    assert (problem.file, problem.field, problem.value) == (PLACE, "training.steps", 60)
    assert "config/config.yaml, where this is 80" in problem.message
    assert "--forceall" in problem.remedy
    check(MADE)
    Path(PLACE).write_text("{")
    with pytest.raises(
        ConfigError, match=r"a different study than config/config\.yaml; \.snakemake"
    ):
        check()
    Path(PLACE).unlink()
    check()


@pytest.mark.parametrize("kept", ["metadata", "incomplete"])
def test_results_with_metadata_are_left_to_snakemake(kept):
    file = Path(".snakemake", kept, "some")
    file.parent.mkdir(parents=True)
    with pytest.raises(ConfigError):
        check()
    file.touch()
    check()


@pytest.mark.parametrize("record", [None, b"", b'{"rule": "descr'])
def test_a_file_whose_record_was_lost_is_refused(record):
    metadata, other = Path(".snakemake/metadata"), "results/runs/single/spec.json"
    metadata.mkdir(parents=True)
    named = {
        place: metadata / urlsafe_b64encode(place.encode()).decode() for place in (PLACE, other)
    }
    named[other].write_text('{"rule": "resolve_spec"}')
    if record is not None:
        named[PLACE].write_bytes(record)
    asked = {PLACE: PLANNED, other: "{}"}, "config/config.yaml", Path(".snakemake")
    problem = problem_of(check_foreign, *asked)
    assert (problem.file, problem.value) == (PLACE, 60)
    assert "record of it in .snakemake/metadata is lost" in problem.message
    assert f"rm {PLACE}" in problem.remedy
    named[PLACE].write_text('{"rule": "describe_study"}')
    check_foreign(*asked)


def test_records_that_would_crash_snakemake_are_refused():
    record = Path(".snakemake/metadata", urlsafe_b64encode(PLACE.encode()).decode())
    record.parent.mkdir(parents=True)
    record.with_name("@long").mkdir()
    record.write_bytes(b'{"rule": "describe_st\xf5dy"}')
    problem = problem_of(check_records, Path(".snakemake"))
    assert problem.file == str(record)
    assert f"rm -r {record} {PLACE}" in problem.remedy
    for text, field in (
        ("[1]", WHOLE_FILE),
        ("7", WHOLE_FILE),
        ("[" * 9999 + "]" * 9999, WHOLE_FILE),
        ('{"input": {"a": 1}}', "input"),
        ('{"starttime": "noon"}', "starttime"),
    ):
        record.write_text(text)
        problem = problem_of(check_records, Path(".snakemake"))
        assert (problem.file, problem.field) == (str(record), field)
        assert f"rm -r {record} {PLACE}" in problem.remedy
    for text in ("{", "null"):  # Snakemake itself ignores them
        record.write_text(text)
        check_records(Path(".snakemake"))
    shutil.rmtree(".snakemake/metadata")
    Path(".snakemake/metadata").touch()
    problem = problem_of(check_records, Path(".snakemake"))
    assert (problem.file, problem.message) == (".snakemake/metadata", "is not a folder")
    assert "mv .snakemake/metadata" in problem.remedy


def test_in_a_folder_of_another_user_nothing_is_to_be_removed(monkeypatch):
    record = Path(".snakemake/metadata/YQ==")
    for closed, named in ((os.R_OK, record), (os.W_OK, record.parents[1]), (os.W_OK, Path.cwd())):
        if closed == os.R_OK:
            record.mkdir(parents=True)  # cannot be read either
        monkeypatch.setattr(os, "access", lambda path, mode, closed=closed: mode != closed)
        problem = problem_of(check_records, Path(".snakemake"))
        assert (problem.file, "permission" in problem.remedy) == (str(named), True)
        assert "rm -r" not in problem.remedy
        if closed == os.W_OK:
            shutil.rmtree(".snakemake", ignore_errors=True)


@pytest.mark.parametrize("closed", ["results", "results/runs/single", "results/runs/single/a.json"])
def test_results_that_cannot_be_written_are_refused_by_name(closed, monkeypatch):
    """Snakemake would say ProtectedOutputException, and no remedy."""
    Path("results/runs/single").mkdir(parents=True)
    Path("results/runs/single/a.json").touch()
    Path("results/runs/single/link").symlink_to("nowhere")
    check_writable(Path("results"))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed)
    problem = problem_of(check_writable, Path("results"))
    assert (problem.file, "chmod -R u+rwX results" in problem.remedy) == (closed, True)


def test_files_that_vanish_meanwhile_are_not_write_protected(monkeypatch):
    """A running study makes and removes temporary files, also while another command starts."""
    temporary = Path("results/.clock.json.tmp")
    temporary.touch()

    def access(path: Any, mode: int) -> bool:
        temporary.unlink(missing_ok=True)
        return Path(path).exists()

    monkeypatch.setattr(os, "access", access)
    check_writable(Path("results"))


@pytest.mark.parametrize("closed", ["results", "results/runs"])
def test_results_that_this_user_may_not_list_are_refused(monkeypatch, closed):
    """Those of another user with umask 077."""
    scandir = os.scandir

    def listed(folder: str | Path) -> Any:
        if str(folder) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    Path("results/runs").mkdir()
    monkeypatch.setattr(os, "scandir", listed)
    problem = problem_of(check_writable, Path("results"))
    assert (problem.file, "closed to this user" in problem.message) == (closed, True)


def test_a_full_disk_is_refused_before_any_work(monkeypatch):
    """Snakemake would print a traceback for each line that it cannot log."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(free=4_096))
    problem = problem_of(check_writable, Path("results"))
    assert (problem.file, problem.remedy) == ("results", "make room there")
    assert "4,096 bytes are free" in problem.message


def test_results_that_are_no_folder_are_refused(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("disk")
    assert problem_of(check_writable, file).message == "is not a folder"
    problem = problem_of(check_writable, link)
    assert f"mkdir -p {tmp_path}/disk" in problem.remedy
    (tmp_path / "disk").mkdir()
    check_writable(link)


def test_results_of_another_study_are_not_overwritten(tmp_path):
    marker = tmp_path / ".study"
    check_owner(STUDY, marker, "my.yaml")
    marker.write_text("mine\n")
    check_owner(STUDY, marker, "my.yaml")
    marker.write_text("theirs\n")
    problem = problem_of(check_owner, STUDY, marker, "my.yaml")
    assert "'theirs'" in problem.message
    assert "mv" in problem.remedy
    check_owner(STUDY.model_copy(update={"replace_results": True}), marker, "my.yaml")


def test_a_damaged_mark_of_the_owner_is_named(tmp_path):
    marker = tmp_path / ".study"
    marker.write_bytes(b"ti\xeey\n")
    assert f"echo NAME > {marker}" in problem_of(check_owner, STUDY, marker, "my.yaml").remedy
    marker.unlink()
    marker.mkdir()
    assert "move that folder away" in problem_of(check_owner, STUDY, marker, "my.yaml").remedy


WORK = """
import os, sys, time
from pathlib import Path
from typing import Any
from schemas.errors import WHOLE_FILE, ConfigError
from transformer_core.study.ownership import work_alone
try:
    work_alone(Path(".snakemake/at-work"))
except ConfigError as error:
    sys.exit(str(error))
if not os.fork():
    time.sleep(30)  # a job that outlives Snakemake
print("working", flush=True)
sys.stdin.read()
"""


def kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def work() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_one_snakemake_at_a_time_and_a_killed_one_blocks_nobody():
    first = work()
    assert first.stdout.readline() == "working\n"
    second = work()
    said = second.communicate()[1]
    assert second.returncode == 1
    assert "another Snakemake works in this folder" in said
    assert f"{first.pid} on " in said
    first.kill()
    first.wait()
    third = work()
    assert third.stdout.readline() == "working\n"
    for one in (first, third):
        kill_group(one)


def test_results_to_compare_with_must_exist_and_be_readable(tmp_path, monkeypatch):
    (tmp_path / "study.json").touch()
    check_results(tmp_path)
    for given in (None, str(tmp_path / "elsewhere"), 7, "x" * 300):
        problem = problem_of(check_results, given)
        assert problem.field == "against"
        assert "--config against=FOLDER" in problem.remedy
    closed = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(Path, "open", Mock(side_effect=closed))  # root may read all
    problem = problem_of(check_results, tmp_path)
    assert problem.message == "its study.json cannot be read: permission denied"


def test_a_folder_of_results_that_cannot_be_written_is_refused():
    mark_owner(STUDY, Path("results/.study"))
    assert Path("results/.study").read_text() == "mine\n"
    Path("full").touch()
    problem = problem_of(mark_owner, STUDY, Path("full/.study"))
    assert (problem.file, problem.message) == ("full", "cannot be written: File exists")
    assert problem.remedy.startswith("free space on its disk")


def test_a_study_has_not_spent_the_time_of_the_one_that_it_replaces():
    marker, clock = Path("results/.study"), Path("results/.clock.json")
    for owner in ("mine", "theirs"):
        marker.write_text(f"{owner}\n")
        clock.touch()
        mark_owner(STUDY, marker)
        assert clock.exists() == (owner == "mine")
