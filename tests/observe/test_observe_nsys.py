"""Nsight Systems in captures: finding it, its flags, and its failures."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from capture_builders import NEW_HELP, OLD_HELP, fake_nsys, spec_of, write_export, write_trained

from schemas.config.measurement import Profiling
from schemas.errors import Unsupported
from schemas.results import Capture
from transformer_core.observe import profile_job as job
from transformer_core.observe.nsys import Nsys, environment, find_nsys, options, rows, telling_lines
from transformer_core.observe.profile_job import CaptureOrder, choose, supervise, under


def nsys(text: str = NEW_HELP) -> Nsys:
    return Nsys("/bin/nsys", "2026.1", options(text))


def flags(text: str = NEW_HELP, cuda: bool = True) -> dict[str, str]:
    """The options of the command that profiles a rank, after ``nsys profile``."""
    path, verb, *words = nsys(text).command(Path("/out"), cuda)
    assert (path, verb) == ("/bin/nsys", "profile")
    return dict(word.removeprefix("--").split("=", 1) for word in words)


def test_only_flags_of_the_installed_version_are_used():
    both = {
        "trace": "cuda,nvtx",
        "sample": "none",
        "export": "sqlite",
        "kill": "none",
        "force-overwrite": "true",
        "capture-range": "cudaProfilerApi",
        "output": "/out/rank-%q{RANK}",
    }
    new = {"cpuctxsw": "none", "cuda-graph-trace": "node", "capture-range-end": "stop"}
    assert flags() == both | new
    assert flags(OLD_HELP) == both | {"stop-on-range-end": "true"}
    no_sqlite = flags(NEW_HELP.replace("none sqlite text json", "none hdf"))
    assert no_sqlite == {name: value for name, value in flags().items() if name != "export"}
    # Without a GPU a range starts the capture.
    ranged = {"capture-range": "nvtx", "nvtx-capture": "capture@transformer_core"}
    assert flags(cuda=False) == both | new | ranged
    with pytest.raises(ValueError, match="does not know --capture-range, --output"):
        flags("\t-t, --trace=\n")


def test_nsys_wraps_every_process_of_torchrun():
    worker = ["-m", "worker"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    around = ["nsys", "profile", sys.executable, *worker]
    assert under(["nsys", "profile"], torchrun + worker) == [*torchrun, "--no-python", *around]
    assert under(["nsys"], [sys.executable, *worker]) == ["nsys", sys.executable, *worker]


def test_secrets_and_unknown_variables_stay_out_of_the_report(monkeypatch):
    private = {"MY_NOTES", "HF_TOKEN", "CUDA_API_TOKEN", "PYTHON_SECRET"}
    needed = {"NCCL_DEBUG", "TRITON_CACHE_DIR", "CC", "OMP_NUM_THREADS", "MASTER_PORT"}
    needed |= {"CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH"}  # modules of a cluster; Triton compiles C
    needed |= {
        "CUBLAS_WORKSPACE_CONFIG",
        "GOMP_CPU_AFFINITY",
        "ONEDNN_VERBOSE",
    }  # speed depends on them
    for name in (*private, *needed):
        monkeypatch.setenv(name, "3")
    kept = environment()
    assert needed <= {name for name, value in kept.items() if value == "3"}
    assert kept["PATH"] == os.environ["PATH"]
    assert not private & set(kept)


def test_the_choice_of_a_profiler_and_its_reason():
    auto = Profiling()
    assert choose(auto, nsys(), cuda=True).profiler == "nsys"
    assert "not on the PATH" in choose(auto, None, cuda=True).reason
    assert "no CUDA device" in choose(auto, nsys(), cuda=False).reason
    assert "2 hosts" in choose(auto, nsys(), cuda=True, nodes=2).reason
    assert choose(Profiling(profiler="torch"), nsys(), cuda=True).profiler == "torch"
    assert choose(Profiling(profiler="nsys"), nsys(), cuda=False).profiler == "nsys"
    with pytest.raises(Unsupported, match="one host"):
        choose(Profiling(profiler="nsys"), nsys(), cuda=True, nodes=2)


def captured(folder: Path, profiler: str = "nsys") -> Capture:
    """The record of a capture of a run on GPUs, with its files in ``folder/out``."""
    output = folder / "out"
    output.mkdir()
    order = CaptureOrder(
        spec=spec_of("cuda"),
        data=folder,
        output=output,
        command="again",
        profiling=Profiling(profiler=profiler),
        profiler="torch",
    )
    supervise(order)
    return Capture.model_validate_json((output / "capture.json").read_text())


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts :func:`fake_nsys` on the PATH and returns its folder. It leaves the record of a successful
    training and, if ``kernels`` are given, an export with as many kernels and 7 ranges, or one that is
    ``damaged``."""

    def put(
        said: str = "", code: int = 0, kernels: int | None = None, damaged: bool = False
    ) -> Path:
        folder = fake_nsys(tmp_path / "bin", said, code)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        if code == 0:
            write_trained(folder / "left")
        if kernels is not None:
            write_export(folder / "left", kernels, ranges=7)
        if damaged:
            (folder / "left/rank-0.sqlite").write_text("cut off")
        return folder

    return put


def test_not_installed(tmp_path, monkeypatch):
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nsys" else found(name))
    record = captured(tmp_path)
    assert record.status == "unsupported"
    assert "not on the PATH" in str(record.reason)
    assert record.profiler is None


def test_a_good_report_is_kept_and_private(tmp_path, on_path):
    on_path(kernels=5)
    record = captured(tmp_path)
    assert (record.status, record.profiler) == ("ok", "nsys")
    assert record.profiler_version == "2026.1.1.1-abc"
    (rank,) = record.ranks
    assert rank.files == ["rank-0.sqlite", "rank-0.nsys-rep"]
    for name in rank.files:
        assert (tmp_path / "out" / name).stat().st_mode & 0o077 == 0
    assert not (tmp_path / "out/rank-0.json").exists()


def test_an_old_report_without_an_export_is_exported(tmp_path, on_path):
    folder = on_path()
    (folder / "left/rank-0.qdrep").write_bytes(b"report")
    write_export(folder / "exported", kernels=1, ranges=1)
    assert captured(tmp_path).status == "ok"


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        (
            {"said": "The user running Nsight Systems lacks privilege: denied.", "code": 1},
            "exit code 1 before training: The user running Nsight Systems lacks privilege",
        ),
        (
            {"said": "Importer error status: The importer binary was not found."},
            "left no SQLite export for rank 0: Importer error status",
        ),
        ({"said": "Generated:"}, "left no SQLite export for rank 0: Generated:"),
        ({"kernels": 0}, "no kernel on rank 0, but 7 NVTX events"),
        (
            {"said": "No space left", "damaged": True},
            "left a damaged export for rank 0 (file is not a database): No space",
        ),
    ],
)
def test_a_failed_capture_has_a_status(tmp_path, on_path, left, reason):
    on_path(**left)
    record = captured(tmp_path)
    assert record.status == "unsupported"
    assert reason in str(record.reason)
    assert (record.profiler, record.ranks) == (None, [])


def test_a_crash_of_nsys_is_no_request_to_stop(tmp_path, on_path, monkeypatch):
    on_path(code=1)
    monkeypatch.setattr(job, "wait_for", lambda child: child.wait() and -signal.SIGSEGV)
    record = captured(tmp_path)
    assert record.status == "unsupported"
    assert "nsys ended with signal SIGSEGV" in record.reason


def test_auto_falls_back_to_torch(tmp_path, on_path, monkeypatch):
    on_path(kernels=0)
    asked: list[str] = []

    def attempt(order: CaptureOrder, result: Path) -> None:
        asked.append(order.profiler)
        write_trained(order.output)

    monkeypatch.setattr(job, "attempt", attempt)
    record = captured(tmp_path, "auto")
    assert asked == ["torch"]
    assert (record.status, record.profiler) == ("ok", "torch")
    assert "Nsight Systems could not: nsys recorded no kernel" in record.profiler_reason


def test_an_impossible_run_is_not_tried_again(tmp_path, on_path, monkeypatch):
    monkeypatch.setattr(job, "attempt", lambda *_: pytest.fail("tried again"))
    outcome = job.Outcome(status="unsupported", reason="needs 8 GPUs", rank=0, time=1)
    (on_path(code=1) / "left/outcome-0.json").write_text(outcome.model_dump_json())
    record = captured(tmp_path, "auto")
    assert (record.status, record.reason) == ("unsupported", "needs 8 GPUs")


def test_a_run_that_said_how_it_ended_is_not_repeated(tmp_path, monkeypatch, caplog):
    """attempt() logs the end of its run."""
    outcome = job.Outcome(status="oom", reason="needs 48 GiB", time=1)
    monkeypatch.setattr(job, "attempt", lambda *_: outcome)
    with caplog.at_level("INFO"):
        assert captured(tmp_path, "torch").reason == "needs 48 GiB"
    assert "The study asks for torch.profiler." in caplog.text
    assert "needs 48 GiB" not in caplog.text


def test_lines_that_describe_an_error_are_found():
    said = "fine\nerror: a\rmore\nPermission denied\n"
    assert telling_lines(said) == "error: a Permission denied"
    assert telling_lines("one\ntwo\n") == "two"
    assert telling_lines("") == ""


def test_nsys_that_does_not_start_is_not_used(on_path):
    (on_path() / "nsys").write_text("#!/bin/sh\nexit 3\n")
    assert find_nsys() is None


@pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not on the PATH")
def test_the_real_one_records_ranges_and_no_kernel_without_a_gpu(tmp_path):
    """It accepts the flags, a range starts the capture, and the export contains the ranges."""
    found = find_nsys()
    program = (
        "import nvtx\n"
        "from transformer_core.observe.nsys import CAPTURE_RANGE, DOMAIN\n"
        "with nvtx.annotate('before', domain=DOMAIN): pass\n"
        "with nvtx.annotate(CAPTURE_RANGE, domain=DOMAIN):\n"
        "    for phase in ('phase:step', 'phase:forward'):\n"
        "        with nvtx.annotate(phase, domain=DOMAIN): pass\n"
    )
    command = [*found.command(tmp_path, cuda=False), sys.executable, "-c", program]
    subprocess.run(command, check=True, env=environment(), cwd=tmp_path, timeout=120)
    kernels, ranges = rows(tmp_path / "rank-0.sqlite")
    assert kernels == 0
    assert ranges >= 3
    with sqlite3.connect(tmp_path / "rank-0.sqlite") as database:
        texts = {text for (text,) in database.execute("SELECT value FROM StringIds")}
    assert {"phase:step", "phase:forward"} <= texts
