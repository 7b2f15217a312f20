"""Threads beside the training: what they copy belongs to no phase."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traces import complete, kineto, on_device

from schemas.results import DeviceBreakdown
from transformer_core.trace.breakdown.devices import break_down
from transformer_core.trace.readers.files import read_files

MAIN, AUTOGRAD, LOADER, PINNING = 1, 2, 3, 4
PHASES = [
    complete("user_annotation", "phase:forward", 0, 20, tid=MAIN),
    complete("user_annotation", "phase:backward", 20, 20, tid=MAIN),
    complete("user_annotation", "phase:optimizer", 40, 20, tid=MAIN),
]


def launch(correlation: int, time: float, thread: int) -> dict[str, Any]:
    return complete("cuda_runtime", "cudaLaunch", time, 1, tid=thread, correlation=correlation)


def copy(correlation: int, time: float) -> dict[str, Any]:
    return on_device("gpu_memcpy", "Memcpy HtoD (Pinned)", time, 7, correlation, 9, bytes=8)


WORK = [
    *(launch(1, 5, MAIN), on_device("kernel", "sgemm", 6, 10, 1)),
    *(launch(2, 25, AUTOGRAD), on_device("kernel", "sgemm", 26, 10, 2)),
    *(launch(3, 45, MAIN), on_device("kernel", "adam", 46, 3, 3)),
    *(launch(4, 50, PINNING), copy(4, 51)),
    *(launch(5, 48, LOADER), on_device("kernel", "decode", 70, 5, 5, 9)),
    *(launch(6, 8, LOADER), on_device("kernel", "decode", 20, 5, 6, 9)),
]


def device(folder: Path, rows: Sequence[dict[str, Any]]) -> DeviceBreakdown:
    (found,) = break_down(read_files([kineto(folder / "trace.json", rows)]).table)
    return found


def test_what_loaders_launch_is_listed_apart(tmp_path: Path) -> None:
    found = {phase.phase: phase for phase in device(tmp_path, PHASES + WORK).phases}
    assert list(found) == ["forward", "backward", "optimizer", "loader"]
    assert [phase.compute_ns for phase in found.values()] == [10_000, 10_000, 3_000, 10_000]
    assert (found["optimizer"].copies_ns, found["loader"].copies_ns) == (0, 7_000)
    assert found["loader"].host_ns is None


def test_a_thread_with_operators_takes_part(tmp_path: Path) -> None:
    rows = [*PHASES, *WORK, complete("cpu_op", "aten::to", 49, 5, tid=PINNING)]
    found = {phase.phase: phase for phase in device(tmp_path, rows).phases}
    assert found["optimizer"].copies_ns == 7_000


def test_without_a_range_of_backward_kernels_may_be_those_of_autograd(tmp_path: Path) -> None:
    found = {phase.phase: phase for phase in device(tmp_path, PHASES[::2] + WORK).phases}
    assert list(found) == ["forward", "optimizer", "loader", "other"]
    assert found["loader"].compute_ns == 0
    assert found["other"].compute_ns == 10_000
