"""What traces of others hold that those at hand do not: found in public sample traces."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from traces import complete, kineto, on_device

from transformer_core.profiling.events.rows import rows_of
from transformer_core.profiling.joining.reading import read_files
from transformer_core.profiling.readers.kineto.kineto_reader import read_kineto


def test_times_are_exact_between_events_without_a_time(tmp_path: Path) -> None:
    """A sample of the events that meets only arrows must not decide that doubles will do."""
    ts = 4_458_676_422_880.181
    rows: list[dict[str, Any]] = []
    for place in range(256):
        arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "id": place}
        rows += [arrow, *[on_device("kernel", "k", ts + 9 * place, 1, place)] * (place % 2)]
        rows += [arrow | {"ph": "f"}] * (2 - place % 2)
    (trace,) = read_kineto(kineto(tmp_path / "t.json", rows)).processes
    wanted = [round(Decimal(str(row["ts"])) * 1000) for row in rows if row["ph"] == "X"]
    assert trace.device["t0"].tolist() == wanted


def test_launches_of_other_runtimes_are_joined(tmp_path: Path) -> None:
    for runtime in ("xpu_runtime", "privateuse1_driver"):
        launch = complete(runtime, "urEnqueueKernelLaunch", 1, 1, correlation=5)
        path = kineto(tmp_path / f"{runtime}.json", [launch, on_device("kernel", "k", 10, 4, 5)])
        assert rows_of(read_files([path]).table)["launch_ns"].tolist() == [1000]


def test_accelerators_that_are_not_read_are_told(tmp_path: Path) -> None:
    rows = [
        complete("cpu_op", "aten::mm", 0, 5),
        complete("mtia_ccp_events", "dma_request", 1, 9, direction="DEVICE_TO_HOST"),
        complete("mtia_ccp_events", "fc-dtype_Half", 2, 9, correlation=1),
    ]
    notes = read_kineto(kineto(tmp_path / "t.json", rows)).notes
    assert [note for note in notes if note.startswith("2 events were left out: an accelerator's")]
