"""Real traces of GPUs against independent numbers, to the nanosecond.

The traces are not part of the project. ``TRANSFORMER_STUDY_TRACES`` names a folder with ``nsys/``,
``kineto/`` and ``reference/``; without it, these tests are skipped.
"""

import csv
import os
from functools import cache
from pathlib import Path

import pytest
from test_trace_perfetto import held
from traces import break_down

from schemas.results import DeviceBreakdown
from transformer_core.trace.events import event_table
from transformer_core.trace.events.event_table import Rows, rows_of
from transformer_core.trace.perfetto import write
from transformer_core.trace.readers.files import read_files

FOLDER = os.environ.get("TRANSFORMER_STUDY_TRACES")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="TRANSFORMER_STUDY_TRACES does not name a folder of traces"
)
TRACES = {
    "nsysai_h100_2gpu_1s": "nsys/nsysai_h100_2gpu_1s.sqlite",
    "flameox_nsight_2025.5.2_graph": "nsys/flameox_nsight_2025.5.2_graph.sqlite",
    "param_dlrm_8ranks": "kineto/param_dlrm_8ranks/*.json.gz",
    "tracelens_h100_qwen0.5b_1gpu": "kineto/tracelens_h100_qwen0.5b_1gpu.json.gz",
}
COLLECTIVES = {"allreduce": "all_reduce", "sendrecv": "all_to_all"}


class Trace:
    """A trace as the project reads it, and its reference numbers."""

    def __init__(self, name: str) -> None:
        assert FOLDER
        self.name = name
        reading = read_files(sorted(Path(FOLDER).glob(TRACES[name])))
        # The reference leaves out CUDA graphs that were recorded as a whole.
        graphs = rows_of(reading.events).equal("class", event_table.GRAPH)
        table = reading.events.where(~graphs)
        self.format, self.events = reading.format, reading.events
        self.devices = break_down(table)
        self.rows = rows_of(table)

    def reference(self, kind: str) -> list[dict[str, str]]:
        assert FOLDER
        path = Path(FOLDER, "reference", f"{self.name}.ref.{kind}.csv")
        if not path.exists():
            return []
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def device(self, row: dict[str, str]) -> DeviceBreakdown:
        """The device of a row of the reference, which calls the processes of nsys ranks."""
        (found,) = [
            device
            for device in self.devices
            if (device.pid if self.format == "nsys" else device.rank) == int(row["rank"])
            and device.device == f"cuda:{row['device']}"
        ]
        return found

    def rows_on(self, device: DeviceBreakdown) -> Rows:
        return self.rows.where(
            (self.rows["rank"] == device.rank) & (self.rows["device"] == device.device)
        )


@cache
def read(name: str) -> Trace:
    return Trace(name)


@pytest.fixture(params=TRACES)
def trace(request):
    return read(request.param)


def test_summary(trace):
    rows = trace.reference("summary")
    assert len(rows) == len(trace.devices)
    for row in rows:
        device = trace.device(row)
        span = device.span
        mine = trace.rows_on(device)
        sums = {
            kind: sum(a.time_ns for a in device.activities if a.kind == kind)
            for kind in event_table.CLASSES
        }
        communication = sums[event_table.COMMUNICATION]
        kernels = communication + sums[event_table.COMPUTE]
        found = {
            "events": device.events,
            "kernels": device.kernels,
            "span_ns": span.window_ns,
            "busy_ns": span.busy_ns,
            "idle_ns": span.idle_ns,
            "kernel_sum_ns": kernels,
            "comm_sum_ns": communication,
            "compute_sum_ns": sums[event_table.COMPUTE],
            "comm_union_ns": span.communication_ns,
            "compute_union_ns": span.compute_ns,
            "comm_compute_overlap_ns": span.overlap_ns,
            "exposed_comm_ns": span.exposed_communication_ns,
            "memcpy_union_ns": mine.union(mine["class"] == event_table.MEMCPY).length,
            "memset_union_ns": mine.union(mine["class"] == event_table.MEMSET).length,
        }
        assert found == {name: int(row[name]) for name in found}
        exposed_copies = 100 * (span.exposed_copies_ns or 0) / span.window_ns
        assert exposed_copies == pytest.approx(float(row["p_mem_exposed_pct"]), abs=1e-4)


def test_collectives(trace):
    rows = trace.reference("collectives")
    assert sum(len(device.collectives) for device in trace.devices) == len(rows)
    for row in rows:
        name = COLLECTIVES[row["collective"]]
        (found,) = [c for c in trace.device(row).collectives if c.collective == name]
        expected = [int(row[column]) for column in ("count", "sum_ns", "union_ns")]
        assert [found.count, found.time_ns, found.union_ns] == expected


def test_collectives_wait_for_the_slowest_rank():
    devices = read("param_dlrm_8ranks").devices
    for name in COLLECTIVES.values():
        of_ranks = [c for device in devices for c in device.collectives if c.collective == name]
        transfers = {c.transfer_ns for c in of_ranks}
        assert len(of_ranks) == 8
        assert len(transfers) == 1
        assert all((c.transfer_ns or 0) + (c.waiting_ns or 0) == c.time_ns for c in of_ranks)
        assert min(transfers, key=int) <= min(c.time_ns for c in of_ranks)


def test_copies(trace):
    for row in trace.reference("memops"):
        of_kind = [a for a in trace.device(row).activities if a.kind == row["op"]]
        (found,) = [a for a in of_kind if a.kind == "memset" or a.name == row["kind"]]
        expected = [int(row[column]) for column in ("count", "bytes", "sum_ns")]
        assert [found.count, found.bytes, found.time_ns] == expected


def test_streams(trace):
    for row in trace.reference("streams"):
        (found,) = [s for s in trace.device(row).streams if s.stream == int(row["stream"])]
        assert (found.events, found.busy_ns) == (int(row["events"]), int(row["busy_ns"]))
        assert 100 * found.occupancy == pytest.approx(float(row["occupancy_pct_of_span"]), abs=1e-4)


def test_longest_kernels(trace):
    for device in trace.devices:
        rows = [row for row in trace.reference("top10") if trace.device(row) is device]
        assert len(device.kernel_times) == len(rows)
        found = {kernel.name: kernel for kernel in device.kernel_times}
        # Of kernels that tie for the last places, the reference may show others.
        last = min(kernel.time_ns for kernel in device.kernel_times)
        assert last == min(int(row["sum_ns"]) for row in rows)
        for row in rows:
            if row["name"] not in found:
                assert int(row["sum_ns"]) == last
                continue
            kernel = found[row["name"]]
            times = [kernel.count, kernel.time_ns, kernel.shortest_ns, kernel.longest_ns]
            assert times == [int(row[name]) for name in ("count", "sum_ns", "min_ns", "max_ns")]
            assert 100 * kernel.share == pytest.approx(float(row["pct_of_kernel_sum"]), abs=1e-4)


def test_a_viewer_shows_every_device_event(trace, tmp_path):
    write(tmp_path / "all.json", trace.events)
    held(tmp_path / "all.json", trace.events)


def test_the_critical_path_is_as_long_as_the_step():
    (device,) = read("tracelens_h100_qwen0.5b_1gpu").devices
    (window,) = [step.partition.window_ns for step in device.steps]
    assert sum(part.time_ns for part in device.critical_path) == window
    assert (device.bound.verdict, device.bound.window_ns) == ("device", window)
