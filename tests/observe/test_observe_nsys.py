"""Nsight Systems as a capture uses it: found, its flags probed, and its failures told apart."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from capture_builders import NEW_HELP, OLD_HELP, exported, fake_nsys, spec_of, trained

from schemas.config.measurement import Profiling
from schemas.errors import Unsupported
from schemas.results import Capture
from transformer_core.observe import profile_job as job
from transformer_core.observe.nsys import Nsys, environment, find_nsys, options, rows, telling_lines
from transformer_core.observe.profile_job import CaptureOrder, choose, supervise, under

RUNS = "import capture_builders as b\nb.trained(output)\n"


def nsys(text: str = NEW_HELP) -> Nsys:
    return Nsys("/bin/nsys", "2026.1", options(text))


def captured(folder: Path, profiler: str) -> Capture:
    """What a capture of a run on GPUs leaves."""
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
    def put(profile: str, text: str = NEW_HELP) -> Path:
        fake_nsys(tmp_path / "bin", profile, text)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return tmp_path

    return put


@pytest.fixture
def no_nsys(monkeypatch):
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nsys" else found(name))


def test_the_flags_are_those_that_a_version_knows():
    new, old = (nsys(text).command(Path("/out"), cuda=True) for text in (NEW_HELP, OLD_HELP))
    for command in (new, old):
        assert command[:2] == ["/bin/nsys", "profile"]
        assert command[-1] == "--output=/out/rank-%q{RANK}"
        assert {
            "--trace=cuda,nvtx",
            "--capture-range=cudaProfilerApi",
            "--export=sqlite",
            "--kill=none",
            "--sample=none",
        } <= set(command)
    assert {"--capture-range-end=stop", "--cpuctxsw=none", "--cuda-graph-trace=node"} <= set(new)
    assert "--stop-on-range-end=true" in old
    assert not [
        word
        for word in old
        if word.startswith(("--cpuctxsw", "--cuda-graph", "--capture-range-end"))
    ]


def test_a_value_that_a_version_lacks_is_not_asked_for():
    no_sqlite = nsys(NEW_HELP.replace("none sqlite text json", "none hdf"))
    command = no_sqlite.command(Path("/out"), cuda=True)
    assert not [word for word in command if word.startswith("--export")]
    assert "--trace=cuda,nvtx" in command


def test_without_a_gpu_a_range_starts_the_capture():
    command = nsys().command(Path("/out"), cuda=False)
    assert {"--capture-range=nvtx", "--nvtx-capture=capture@transformer_core"} <= set(command)


def test_a_version_without_what_is_needed_says_so():
    with pytest.raises(ValueError, match="does not know --capture-range, --output"):
        nsys("\t-t, --trace=\n").command(Path("/out"), cuda=True)


def test_it_runs_around_every_process_of_torchrun():
    worker = ["-m", "worker"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    around = ["nsys", "profile", sys.executable, *worker]
    assert under(["nsys", "profile"], torchrun + worker) == [*torchrun, "--no-python", *around]
    assert under(["nsys"], [sys.executable, *worker]) == ["nsys", sys.executable, *worker]


def test_secrets_and_the_unknown_stay_out_of_the_report(monkeypatch):
    for name in ("MY_NOTES", "HF_TOKEN", "CUDA_API_TOKEN", "PYTHON_SECRET", "NCCL_DEBUG", "RANK"):
        monkeypatch.setenv(name, "3")
    kept = environment()
    assert kept["NCCL_DEBUG"] == kept["RANK"] == "3"
    assert kept["PATH"] == os.environ["PATH"]
    assert not {"MY_NOTES", "HF_TOKEN", "CUDA_API_TOKEN", "PYTHON_SECRET"} & set(kept)


def test_which_profiler_and_why():
    auto = Profiling()
    assert choose(auto, nsys(), cuda=True).profiler == "nsys"
    assert "not on the PATH" in choose(auto, None, cuda=True).reason
    assert "no CUDA device" in choose(auto, nsys(), cuda=False).reason
    assert "2 hosts" in choose(auto, nsys(), cuda=True, nodes=2).reason
    assert choose(Profiling(profiler="torch"), nsys(), cuda=True).profiler == "torch"
    assert choose(Profiling(profiler="nsys"), nsys(), cuda=False).profiler == "nsys"
    with pytest.raises(Unsupported, match="not on the PATH"):
        choose(Profiling(profiler="nsys"), None, cuda=True)
    with pytest.raises(Unsupported, match="one host"):
        choose(Profiling(profiler="nsys"), nsys(), cuda=True, nodes=2)


def test_not_installed(tmp_path, no_nsys):
    record = captured(tmp_path, "nsys")
    assert record.status == "unsupported"
    assert "not on the PATH" in str(record.reason)
    assert record.profiler is None


def test_a_good_report_is_kept_and_private(on_path):
    folder = on_path(RUNS + "b.exported(output, kernels=5, ranges=7)")
    record = captured(folder, "nsys")
    assert (record.status, record.profiler) == ("ok", "nsys")
    assert record.profiler_version == "2026.1.1.1-abc"
    (rank,) = record.ranks
    assert rank.files == ["rank-0.sqlite", "rank-0.nsys-rep"]
    for name in rank.files:
        assert (folder / "out" / name).stat().st_mode & 0o077 == 0
    assert not (folder / "out" / "rank-0.json").exists()


def test_an_old_report_without_an_export_is_exported(tmp_path, on_path):
    folder = on_path(RUNS + "pathlib.Path(output + '.qdrep').write_bytes(b'report')")
    fake = folder / "bin" / "nsys"
    fake.write_text(
        fake.read_text() + "elif words[0] == 'export':\n"
        "    import capture_builders as b\n"
        "    given = next(w for w in words if w.startswith('--output='))\n"
        "    b.exported(given.removeprefix('--output=').removesuffix('.sqlite'), 1, 1)\n"
    )
    assert captured(folder, "nsys").status == "ok"


FAULTS = {
    "permission": (
        "print('The user running Nsight Systems lacks privilege: Permission denied.')\nsys.exit(1)",
        "exit code 1 before training: The user running Nsight Systems lacks privilege",
    ),
    "importer": (
        RUNS + "print('Importer error status: The importer binary was not found.')",
        "left no SQLite export for rank 0: Importer error status",
    ),
    "no_file": (RUNS + "print('Generated:')", "left no SQLite export for rank 0: Generated:"),
    "no_kernels": (
        RUNS + "b.exported(output, kernels=0, ranges=7)",
        "no kernel on rank 0, but 7 NVTX events",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_went_wrong_is_a_status(fault, on_path):
    profile, reason = FAULTS[fault]
    record = captured(on_path(profile), "nsys")
    assert record.status == "unsupported"
    assert reason in str(record.reason)
    assert (record.profiler, record.ranks) == (None, [])


def test_auto_takes_torch_where_nsys_cannot(on_path, monkeypatch):
    def recorded(order: CaptureOrder) -> None:
        trained(order.output / "rank-0")

    monkeypatch.setattr(job, "capture_with_torch", recorded)
    record = captured(on_path(RUNS + "b.exported(output, kernels=0, ranges=7)"), "auto")
    assert (record.status, record.profiler) == ("ok", "torch")
    assert "Nsight Systems could not: nsys recorded no kernel" in record.profiler_reason


def test_a_run_that_cannot_be_is_not_tried_again(on_path, monkeypatch):
    monkeypatch.setattr(job, "capture_with_torch", lambda *_: pytest.fail("tried again"))
    folder = on_path(
        "record = dict(status='unsupported', reason='needs 8 GPUs', rank=0, time=1)\n"
        "record['traceback'] = None\n"
        "pathlib.Path(output).with_name('outcome-0.json').write_text(json.dumps(record))\n"
        "sys.exit(1)"
    )
    record = captured(folder, "auto")
    assert (record.status, record.reason) == ("unsupported", "needs 8 GPUs")


def test_rows_of_tables_that_are_not_there(tmp_path):
    exported(tmp_path / "rank-0", kernels=0, ranges=0)
    with sqlite3.connect(tmp_path / "rank-0.sqlite") as database:
        database.execute("CREATE TABLE other (x INTEGER)")
    assert rows(tmp_path / "rank-0.sqlite") == (0, 0)
    exported(tmp_path / "rank-1", kernels=2, ranges=3)
    assert rows(tmp_path / "rank-1.sqlite") == (2, 3)


def test_the_lines_that_tell():
    assert (
        telling_lines("fine\nerror: a\rmore\nPermission denied\n") == "error: a Permission denied"
    )
    assert telling_lines("one\ntwo\n") == "two"
    assert telling_lines("") == ""


def test_a_program_that_does_not_start_is_not_there(tmp_path, monkeypatch):
    (tmp_path / "nsys").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_nsys() is None


@pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not on the PATH")
def test_the_real_one_records_ranges_and_no_kernel_without_a_gpu(tmp_path):
    """Its flags are accepted, a range starts the capture, and the export holds the ranges."""
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
