"""What steps wait for: parts that sum to the step, launches and queues, the critical path."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import complete, event_table, kineto, mark, on_device, talk, work

from schemas.results import StepBound
from transformer_core.trace.breakdown.devices import break_down
from transformer_core.trace.readers.files import read_files

TRACES = os.environ.get("TRANSFORMER_STUDY_TRACES")


def step(length: int) -> list[dict]:
    return [
        mark("step", 0, length, step=0),
        mark("data", 0, 20, phase="data", step=0),
        mark("forward", 20, length, phase="forward", step=0),
    ]


def total(bound: StepBound) -> int:
    parts = set(StepBound.model_fields) - {"window_ns"}
    return sum(getattr(bound, name) for name in parts)


def test_parts_of_a_step_by_what_it_waits_for() -> None:
    rows = [
        *step(200),
        work("gemm", 50, 90, launch_ns=40, step=0),  # launched late: bound by the host
        talk("all_reduce", 80, 120, launch_ns=45, step=0, stream=20),
        # Launched at 60, begins at 140 on an idle device: nobody knows why.
        work("gelu", 140, 150, launch_ns=60, step=0),
        work("adam", 190, 200, launch_ns=180, step=0),
    ]
    (device,) = break_down(event_table(rows))
    bound = device.bound
    assert bound is not None
    assert total(bound) == bound.window_ns == 200
    assert (bound.device_ns, bound.link_ns, bound.copies_ns) == (60, 30, 0)
    assert bound.input_ns == 20
    # From the end of the batch to the first launch, and before the last.
    assert bound.host_ns == 20 + 30
    assert bound.other_ns == 10 + 20 + 10
    assert bound.verdict == "device"


def test_a_cpu_is_its_own_host() -> None:
    rows = [
        *step(100),
        work("aten::mm", 40, 90, device="cpu", kind="operator", launch_ns=40, step=0),
    ]
    (device,) = break_down(event_table(rows))
    assert device.bound is not None
    assert (device.bound.input_ns, device.bound.host_ns, device.bound.other_ns) == (20, 30, 0)
    assert device.launches is None


def test_delays_and_queues() -> None:
    rows = [
        work("a", 100, 200, launch_ns=90),
        work("b", 200, 300, launch_ns=95),
        work("c", 300, 400, launch_ns=99),
        work("unknown", 400, 410),
    ]
    (device,) = break_down(event_table(rows))
    found = device.launches
    assert found is not None
    assert (found.launches, found.delay_median_ns, found.queue_largest) == (3, 105, 3)
    assert found.queue_median == 2


def test_a_cuda_graph_is_launched_once() -> None:
    graph = {"launch_ns": 10, "thread": 1, "graph": 3, "correlation": 5}
    rows = [work("k", t0, t0 + 50, **graph) for t0 in (60, 110, 160)]
    (device,) = break_down(event_table(rows))
    found = device.launches
    assert found is not None
    assert (found.launches, found.delay_median_ns, found.queue_largest) == (1, 50, 1)


def test_the_critical_path_goes_back_to_what_was_waited_for() -> None:
    waits = [mark("", 150, 260, kind="wait", thread=1)]
    rows = [
        *step(400),
        *waits,
        work("first", 50, 150, launch_ns=40, step=0, stream=7),
        work("second", 150, 250, launch_ns=60, step=0, stream=7),
        work("beside", 160, 190, launch_ns=70, step=0, stream=8),
        # The host waited until 260 for the second, then launched the last at 300.
        work("last", 310, 380, launch_ns=300, step=0, stream=7),
    ]
    (device,) = break_down(event_table(rows))
    path = {(part.kind, part.name): part.time_ns for part in device.critical_path}
    assert sum(path.values()) == 400
    assert path["compute", "first"] == path["compute", "second"] == 100
    assert ("compute", "beside") not in path
    # 20 to 40 before the first launch, 250 to 300 after the wait, 380 to 400 at the end.
    assert path["host", "forward"] == 20 + 50 + 20
    assert path["input", "data"] == 20
    assert path["latency", ""] == 10 + 10


@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(-5, 40), st.integers(7, 8)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20)), max_size=4),
    st.booleans(),
)
def test_path_and_parts_sum_to_the_step(
    events: list[tuple[int, int, int, int]], waits: list[tuple[int, int]], cpu: bool
) -> None:
    device = {"device": "cpu" if cpu else "cuda:0", "step": 0}
    rows = [
        *step(100),
        *(mark("", t0, t0 + length, kind="wait") for t0, length in waits),
        *(
            work("k", t0, t0 + length, launch_ns=t0 if cpu else t0 - delay, stream=stream, **device)
            for t0, length, delay, stream in events
        ),
    ]
    (found,) = break_down(event_table(rows))
    window = found.steps[0].partition.window_ns
    assert found.bound is not None
    assert total(found.bound) == found.bound.window_ns == window
    assert min(found.bound.model_dump().values()) >= 0
    assert sum(part.time_ns for part in found.critical_path) == window


def test_calls_that_wait_are_read(tmp_path: Path) -> None:
    rows = [
        complete("cuda_runtime", "cudaDeviceSynchronize", 10, 5),
        complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        on_device("kernel", "gemm", 3, 9, 1),
    ]
    table = read_files([kineto(tmp_path / "trace.json", rows)]).table
    (wait,) = [row for row in table.to_pylist() if row["kind"] == "wait"]
    assert (wait["t0_ns"], wait["t1_ns"], wait["thread"]) == (10_000, 15_000, 1)


@pytest.mark.skipif(not TRACES, reason="TRANSFORMER_STUDY_TRACES names no folder")
def test_a_real_trace() -> None:
    path = Path(str(TRACES)) / "kineto" / "tracelens_h100_qwen0.5b_1gpu.json.gz"
    (device,) = break_down(read_files([path]).table)
    (window,) = [step.partition.window_ns for step in device.steps]
    assert sum(part.time_ns for part in device.critical_path) == window
    assert device.bound is not None
    assert device.bound.verdict == "device"
    assert device.bound.window_ns == window
