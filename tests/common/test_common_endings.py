"""The end of a job, the commands that errors name, and functions of users."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from subprocess import PIPE

import pytest

from tests.orders import order_text
from transformer_core.common.endings import remake
from transformer_core.common.factories import function_of
from transformer_core.machine.hardware import HardwareJob
from transformer_core.run import job


def test_the_remedy_names_target_study_and_the_damaged_file(monkeypatch):
    monkeypatch.setenv("STUDY_OPTIONS", "--configfile=my.yaml")
    command = "snakemake --cores all a.json --forcerun b.arrow --configfile=my.yaml"
    assert remake("a.json", "b.arrow") == f"make it again: {command}"
    record = "results/turns/single/ddp/ddp/single.json"
    assert " results/turns/single/ddp --forcerun results/turns/single/ddp --" in remake(record)
    assert " results/refined --forcerun" in remake("results/refined/ddp/single.json")
    monkeypatch.delenv("STUDY_OPTIONS")
    again = "snakemake --cores all 'my results/a.json' --forcerun 'my results/a.json'"
    assert remake("my results/a.json") == f"make it again: {again}"


LOG = "from transformer_core.common.progress import log_to; "
JOB = "from transformer_core.common.quick_end import to_the_end as e; import sys; e(lambda: {})"


@pytest.mark.parametrize(
    ("code", "to", "status"),
    [
        (
            "from transformer_core.common.endings import program; exit(program(lambda: 3)())",
            "&-",
            3,
        ),
        (JOB.format("0"), "&-", 0),
        (JOB.format("3"), "&- 2>&-", 3),
        (LOG + JOB.format("log_to(None) or 0"), "&- 2>&- <&-", 0),
        (JOB.format("sys.stdout.write('a') and 0"), "/dev/full", 120),
    ],
)
def test_a_program_without_standard_streams_ends_well(code, to, status):
    """Closed by the shell, or a full disk."""
    command = ["sh", "-c", f'exec "$@" >{to}', "sh", sys.executable, "-c", code]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=buffered)
    assert (ended.returncode, ended.stderr) == (status, "")


@pytest.mark.parametrize("reads", [True, False])
def test_a_program_says_what_fails_only_to_a_reader_that_stays(reads):
    """The other one, such as head, has seen enough."""
    main = "lambda: print('begun') or open('/nowhere/x')"
    code = f"from transformer_core.common.endings import program; exit(program({main})())"
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=PIPE, stderr=PIPE, text=True, env=buffered
    )
    if not reads:
        running.stdout.close()
    output, errors = running.communicate()
    assert running.returncode == 1
    if reads:
        assert output == "begun\n"
        assert "No such file or directory: '/nowhere/x'" in errors
    else:
        assert errors == ""


def test_a_module_without_functions_has_none_to_choose_from(tmp_path, monkeypatch):
    (tmp_path / "mine_without_functions.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="has no function make; remedy: there are none to choose"):
        function_of("model.factory", "mine_without_functions:make")


def broken(*_: object) -> None:
    raise KeyError("no row 7")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "results/hardware.json")


@pytest.mark.parametrize(
    ("run", "last"),
    [
        (broken, "KeyError: 'no row 7'"),
        (full, "remedy: make room there, then run the same command again"),
    ],
)
def test_the_log_of_a_failed_job_ends_with_its_error(tmp_path, monkeypatch, capsys, run, last):
    """It was only printed, above what Snakemake says about the failure."""
    log = tmp_path / "job.log"
    order = order_text("hardware", output=tmp_path / "hardware.json")
    monkeypatch.setattr(sys, "argv", ["job", "--order", order, "--log-file", str(log)])
    monkeypatch.setattr(HardwareJob, "run", run)
    monkeypatch.setattr(job, "log_to", lambda path: None)
    with suppress(KeyError):
        assert job.main() == 1
        assert last in capsys.readouterr().err
    assert log.read_text().splitlines()[-1].strip() == last
