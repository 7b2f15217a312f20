"""``python -m transformer_core.trace``: files of users, captures, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from traces import complete, kineto, on_device, training_report

from schemas.results import Breakdown
from transformer_core.trace.__main__ import main
from transformer_core.trace.events import event_table

KERNEL = [on_device("kernel", "sgemm", 0, 5, 1)]


def read(path: Path) -> Breakdown:
    return Breakdown.model_validate_json(path.read_text())


def run(folder: Path, *arguments: str) -> Breakdown:
    files = ["--events", str(folder / "events.parquet"), "--output", str(folder / "out.json")]
    assert main([*arguments, *files]) == 0
    assert pq.read_schema(folder / "events.parquet").names == list(event_table.COLUMNS)
    return read(folder / "out.json")


def test_traces_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        kineto(tmp_path / f"r{rank}.json", KERNEL, distributedInfo={"rank": rank, "world_size": 2})
        for rank in (1, 0)
    ]
    found = run(tmp_path, *map(str, paths), "--name", "mine")
    assert (found.name, found.status, found.source) == ("mine", "ok", "kineto")
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.viewer_files == [str(path) for path in paths]
    said = capsys.readouterr().out
    assert "rank 1 on cuda:0: the whole trace, 0.005 ms" in said
    assert "compute" in said


def test_traces_that_do_not_say_their_ranks_are_counted(tmp_path: Path) -> None:
    paths = [
        str(kineto(tmp_path / f"{name}.json", [on_device("kernel", name, 0, 5, 1)]))
        for name in "ab"
    ]
    found = run(tmp_path, *paths)
    assert [device.rank for device in found.devices] == [0, 1]
    assert "The traces do not say their ranks: they are counted in order" in found.notes


def test_two_traces_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = {"distributedInfo": {"rank": 0, "world_size": 2}}
    paths = [
        str(kineto(tmp_path / f"{name}.json", [on_device("kernel", name, 0, 5, 1)], **head))
        for name in "ab"
    ]
    assert main(paths) == 1
    assert "is of rank 0, and so is" in capsys.readouterr().err


def test_one_trace_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(kineto(tmp_path / f"{name}.json", KERNEL)) for name in "ab"]
    assert main(paths) == 1
    assert "is the same as" in capsys.readouterr().err


def test_traces_of_two_profilers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [training_report(tmp_path / "a.sqlite"), kineto(tmp_path / "b.json", KERNEL)]
    assert main([str(path) for path in paths]) == 1
    assert "give files of one profiler" in capsys.readouterr().err


def test_neither_files_nor_capture(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "give files, or --capture" in capsys.readouterr().err


def write_capture(folder: Path, **changes: Any) -> Path:
    hardware = {"platform": "p", "cpu": "c", "cores": 1, "logical_cpus": 1, "memory_bytes": 1}
    hardware |= {"cpu_features": [], "gpus": [], "gpu_note": None, "allocator": "a"}
    provenance = {"spec_sha256": "0" * 64, "command": "c", "commit": None, "started": "s"}
    provenance |= {"python": "3", "packages": {}, "hardware": hardware}
    capture = {"variant": "ddp", "status": "ok", "reason": None, "traceback": None}
    capture |= {"profiler": "torch", "profiler_version": "2", "profiler_reason": "no nsys here"}
    capture |= {"topology": None, "warmup_steps": 1, "first_step": 2, "last_step": 2}
    capture |= {"ranks": [], "provenance": provenance}
    path = folder / "capture.json"
    path.write_text(json.dumps(capture | changes))
    return path


def ranks(*files: str) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "files": [name], "step_seconds": [], "ddp": []}
        for rank, name in enumerate(files)
    ]


def test_a_capture(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / f"rank-{rank}.json.gz", KERNEL)
    capture = write_capture(tmp_path, ranks=ranks("rank-0.json.gz", "rank-1.json.gz"))
    found = run(tmp_path, "--capture", str(capture))
    assert (found.name, found.profiler_reason) == ("ddp", "no nsys here")
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.viewer_files == ["rank-0.json.gz", "rank-1.json.gz"]


def test_a_capture_that_did_not_happen_keeps_its_reason(tmp_path: Path) -> None:
    capture = write_capture(tmp_path, status="unsupported", reason="needs two GPUs")
    found = run(tmp_path, "--capture", str(capture))
    assert (found.status, found.reason, found.devices) == ("unsupported", "needs two GPUs", [])


def test_a_damaged_file_of_a_capture_is_a_status(tmp_path: Path) -> None:
    path = kineto(tmp_path / "rank-0.json", KERNEL)
    path.write_text(path.read_text()[:-20])
    found = run(tmp_path, "--capture", str(write_capture(tmp_path, ranks=ranks("rank-0.json"))))
    assert found.status == "failed"
    assert "damaged or cut off" in (found.reason or "")


def test_a_capture_without_events_says_so(tmp_path: Path) -> None:
    kineto(tmp_path / "rank-0.json", [complete("user_annotation", "phase:step", 0, 5)])
    found = run(tmp_path, "--capture", str(write_capture(tmp_path, ranks=ranks("rank-0.json"))))
    assert found.status == "failed"
    assert "the capture range never began" in (found.reason or "")


def test_a_missing_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--capture", str(tmp_path / "capture.json")]) == 1
    assert "make it again" in capsys.readouterr().err
