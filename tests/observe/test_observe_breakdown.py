"""Breakdowns of captures."""

import json
from pathlib import Path
from typing import Any

from traces import complete, kineto, on_device

from schemas.results import Breakdown
from tests.orders import run_job
from tests.records import provenance

KERNEL = [on_device("kernel", "sgemm", 0, 5, 1)]


def run(folder: Path, capture: Path) -> Breakdown:
    output, events = folder / "out.json", folder / "events.parquet"
    assert run_job("breakdown", capture=capture, events=events, output=output) == 0
    assert events.exists()
    return Breakdown.model_validate_json(output.read_text())


def write_capture(folder: Path, **changes: Any) -> Path:
    capture = {"variant": "ddp", "status": "ok", "reason": None, "traceback": None}
    capture |= {"profiler": "torch", "profiler_version": "2", "profiler_reason": "no nsys here"}
    capture |= {"topology": None, "warmup_steps": 1, "first_step": 2, "last_step": 2}
    capture |= {"ranks": [], "provenance": provenance().model_dump(mode="json")}
    path = folder / "capture.json"
    path.write_text(json.dumps(capture | changes))
    return path


def ranks(*files: str) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "files": [name], "step_seconds": [], "ddp": []}
        for rank, name in enumerate(files)
    ]


def test_a_capture(tmp_path):
    for rank in (0, 1):
        kineto(tmp_path / f"rank-{rank}.json.gz", KERNEL)
    capture = write_capture(tmp_path, ranks=ranks("rank-0.json.gz", "rank-1.json.gz"))
    found = run(tmp_path, capture)
    assert (found.name, found.profiler_reason) == ("ddp", "no nsys here")
    assert [device.rank for device in found.devices] == [0, 1]
    assert found.viewer_files == ["rank-0.json.gz", "rank-1.json.gz"]


def test_an_unsupported_capture_keeps_its_reason(tmp_path):
    capture = write_capture(tmp_path, status="unsupported", reason="needs two GPUs")
    found = run(tmp_path, capture)
    assert (found.status, found.reason, found.devices) == ("unsupported", "needs two GPUs", [])


def test_an_unreadable_capture_has_a_failed_breakdown(tmp_path):
    file = kineto(tmp_path / "rank-0.json", KERNEL)
    capture = write_capture(tmp_path, ranks=ranks(file.name))
    file.write_text(file.read_text()[:-20])
    damaged = run(tmp_path, capture)
    kineto(file, [complete("user_annotation", "phase:step", 0, 5)])
    empty = run(tmp_path, capture)
    assert damaged.status == empty.status == "failed"
    assert "damaged or cut off" in damaged.reason
    assert "the capture range never began" in empty.reason
