"""Breakdowns of handwritten event tables: steps, phases, and what they wait for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import (
    break_down,
    complete,
    device_in,
    event_table,
    events_in,
    kineto,
    launch,
    mark,
    on_device,
    talk,
    work,
)

from schemas.results import DeviceBreakdown, StepBound
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.trace.compare import lists_all_kernels
from transformer_core.trace.events.collectives import bus_factor, collective_of, message_bytes


def devices(*rows: dict[str, Any]) -> list[DeviceBreakdown]:
    return break_down(event_table(rows))


def device(*rows: dict[str, Any]) -> DeviceBreakdown:
    (found,) = devices(*rows)
    return found


def test_activities_share_the_sum_of_all_device_time():
    found = device(
        talk("all_reduce", 0, 60),
        talk("broadcast", 60, 79),
        work("gemm", 0, 20, operator_class="contraction"),
        {"name": "copy", "kind": "memcpy", "class": "memcpy", "copy_kind": "h2d"}
        | {"t0_ns": 79, "t1_ns": 80, "bytes": 8},
    )
    shares = {activity.name: activity.share for activity in found.activities}
    assert shares == {"all_reduce": 0.6, "broadcast": 0.19, "contraction": 0.2, "h2d": 0.01}
    assert list(shares) == ["all_reduce", "contraction", "broadcast", "h2d"]  # longest first
    assert found.activities[-1].bytes == 8


def test_streams_count_their_own_time():
    found = device(work("a", 0, 10), work("b", 5, 15), work("c", 90, 100, stream=9))
    assert [(s.stream, s.events, s.busy_ns, s.occupancy) for s in found.streams] == [
        (7, 2, 15, 0.15),
        (9, 1, 10, 0.1),
    ]


def test_a_step_lasts_until_its_last_event_ends():
    found = device(
        mark("step", 0, 100, step=0),
        mark("step", 200, 300, step=1),
        work("a", 50, 150, step=0),
        work("b", 250, 420, step=1),
    )
    windows = [(s.step, s.start_ns, s.partition.window_ns) for s in found.steps]
    assert windows == [(0, -50, 150), (1, 150, 220)]
    assert [s.partition.compute_ns for s in found.steps] == [100, 170]
    assert found.profiled.window_ns == 370
    assert found.span.window_ns == 370  # 50 to 420
    without_steps = device(work("a", 10, 20), work("b", 30, 40))
    assert without_steps.steps == []
    assert without_steps.profiled == without_steps.span


def test_lists_leave_out_work_launched_outside_of_the_steps(tmp_path):
    """A validation before and after two steps; the kernel of the first runs into the first step."""
    rows = []
    for k, (at, length) in enumerate([(0, 60), (50, 20), (150, 20), (300, 500)], start=1):
        name = "phase:step" if k in (2, 3) else "validation"
        rows += [
            complete("user_annotation", name, at, 45),
            complete("user_annotation", "phase:forward", at, 40),
            complete("user_annotation", "layer:model", at, 40),
            complete("cpu_op", "aten::mm", at, 9, **{"Input Dims": [[4, 5], [5, 6]]}),
            launch(k, at + 1),
            on_device("kernel", "sgemm", at + 10, length, k),
        ]
    rows.append(on_device("kernel", "of_unknown_launch", 900, 1, 9))
    breakdown, _ = breakdown_of_files([kineto(tmp_path / "t.json", rows)], "t")
    (device,), found = breakdown.devices, breakdown.summary
    assert [step.partition.compute_ns for step in device.steps] == [30_000, 20_000]
    assert [(use.name, use.count) for use in device.kernel_times] == [
        ("sgemm", 2),
        ("of_unknown_launch", 1),
    ]
    assert (device.events, device.kernels, lists_all_kernels(breakdown)) == (5, 3, True)
    assert [(use.phase, use.host_ns, use.busy_ns) for use in device.phases] == [
        ("forward", 80_000, 40_000),
        ("other", None, 1_000),
    ]
    assert [(layer.calls, layer.time_ns) for layer in found.layers] == [(2, 40_000)]
    assert [(shape.count, shape.flops) for shape in found.shapes] == [(2, 480)]


def test_waiting_is_the_time_beyond_that_of_the_fastest_rank():
    """Two executions: rank 1 is late for the first, rank 0 for the second."""
    sizes = {"bytes": 100, "group_size": 2}
    first, second = devices(
        talk("all_reduce", 0, 50, rank=0, **sizes),
        talk("all_reduce", 100, 110, rank=0, **sizes),
        talk("all_reduce", 30, 50, rank=1, device="cuda:1", **sizes),
        talk("all_reduce", 60, 110, rank=1, device="cuda:1", **sizes),
    )
    (slow,), (fast,) = first.collectives, second.collectives
    assert (slow.time_ns, slow.transfer_ns, slow.waiting_ns) == (60, 30, 30)
    assert (fast.time_ns, fast.transfer_ns, fast.waiting_ns) == (70, 30, 40)
    # 2 (p - 1) / p = 1 for two ranks: 200 bytes in 30 ns.
    assert slow.bus_bandwidth == pytest.approx(200 / 30e-9)


def test_idle_time_before_a_launch_is_bound_by_the_host():
    found = device(
        work("a", 0, 10, launch_ns=0),
        work("b", 50, 60, launch_ns=40),  # idle 10 to 50, launched at 40: 30 of it
        work("c", 70, 80, launch_ns=5),  # launched long before: waits for something else
        work("d", 90, 95),  # launch unknown
        work("e", 100, 110, launch_ns=130),  # clocks differ: no more than the gap of 5
    )
    assert (found.span.idle_ns, found.bound.host_ns, found.bound.other_ns) == (65, 35, 30)


def test_events_belong_to_the_phase_that_launched_them():
    found = device(
        mark("forward", 0, 40, phase="forward"),
        mark("loss", 30, 40, phase="loss"),
        mark("backward", 40, 100, phase="backward"),
        work("a", 10, 60, phase="forward"),
        talk("all_reduce", 50, 90, phase="backward"),
        work("b", 95, 96),
    )
    assert [(p.phase, p.host_ns, p.busy_ns, p.compute_ns) for p in found.phases] == [
        ("forward", 30, 50, 50),
        ("loss", 10, 0, 0),
        ("backward", 60, 40, 0),
        ("other", None, 1, 1),
    ]


def test_backward_against_forward():
    def product(operator: str, phase: str, time: int, flops: int) -> dict[str, Any]:
        row = work("gemm", 0, time, operator_class="contraction", operator=operator)
        return row | {"phase": phase, "flops": flops, "operator_bytes": 3 * flops}

    found = device(
        mark("forward", 0, 1, phase="forward"),
        product("aten::addmm", "forward", 10, 50),
        product("aten::mm", "backward", 12, 50),
        product("aten::mm", "backward", 9, 50),
        product("aten::bmm", "forward", 100, 7),
        work("add", 0, 4, operator_class="element_wise", phase="forward"),
        work("mul", 0, 6, operator_class="element_wise", phase="backward"),
        work("adam", 0, 50, operator_class="element_wise", phase="optimizer"),
    )
    ratios = {r.operators: (r.forward_ns, r.backward_ns, r.ratio) for r in found.forward_backward}
    assert ratios == {
        "linear": (10, 21, 2.1),
        "attention": (100, 0, None),
        "element_wise": (4, 6, 1.5),
    }
    linear, attention, element_wise = found.forward_backward
    assert (linear.flops_ratio, linear.bytes_ratio) == (2, 2)
    assert (attention.flops_ratio, element_wise.bytes_ratio) == (None, None)


COLLECTIVES = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)": "send_recv",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "reduce_scatter",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "ncclDevKernel_AllGather_RING_LL": "all_gather",
    "ncclDevKernel_Broadcast_RING_LL": "broadcast",
    "void multimem_all_reduce_kernel<c10::BFloat16, 8>(...)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<half, 2>(...)": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<half, 16, 2>(...)": "all_reduce",
    "void <unnamed>::multimem_all_reduce_kernel<float, 16, 2>(...)": "all_reduce",
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)": "all_to_all",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)": None,
    # NCCL 2.27 calls its kernels on symmetric memory ncclSym..., later versions ncclSymk...
    "ncclSymDevKernel_AllGather_LLMC(ncclSymDevArgs)": "all_gather",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e4m3(ncclSymkDevWorkArgs4K)": "all_reduce",
    # The kernels of RCCL for all collectives; what launched them says which.
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "other",
    "gloo:broadcast": "broadcast",
    "void at::native::reduce_kernel<512, 1, MeanOps>(...)": None,
    "void at::native::(anonymous namespace)::gather_kernel()": None,
    # Adds what was reduced.
    "triton_poi_fused_add_all_reduce_4": None,
    "sm80_xmma_gemm_f32f32": None,
}


def test_names_of_collectives():
    assert {name: collective_of(name) for name in COLLECTIVES} == COLLECTIVES


def test_sizes_and_factors_are_those_of_nccl_tests():
    assert message_bytes("all_reduce", 100, None, None) == 100
    assert message_bytes("all_gather", 100, None, 4) == 400
    assert message_bytes("all_gather", 100, None, None) is None
    assert message_bytes("reduce_scatter", 400, 100, 4) == 400
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1
    assert bus_factor("all_reduce", 1) is None
    assert bus_factor("barrier", 4) is None


def step(length: int) -> list[dict]:
    return [
        mark("step", 0, length, step=0),
        mark("data", 0, 20, phase="data", step=0),
        mark("forward", 20, length, phase="forward", step=0),
    ]


def total(bound: StepBound) -> int:
    parts = set(StepBound.model_fields) - {"window_ns"}
    return sum(getattr(bound, name) for name in parts)


def test_parts_of_a_step():
    bound = device(
        *step(200),
        work("gemm", 50, 90, launch_ns=40, step=0),  # launched late: bound by the host
        talk("all_reduce", 80, 120, launch_ns=45, step=0, stream=20),
        # Launched at 60, begins at 140 on an idle device, for unknown reasons.
        work("gelu", 140, 150, launch_ns=60, step=0),
        work("adam", 190, 200, launch_ns=180, step=0),
    ).bound
    assert total(bound) == bound.window_ns == 200
    assert (bound.device_ns, bound.link_ns, bound.copies_ns) == (60, 30, 0)
    assert bound.input_ns == 20
    # From the end of the batch to the first launch, and before the last.
    assert bound.host_ns == 20 + 30
    assert bound.other_ns == 10 + 20 + 10
    assert bound.verdict == "device"


def test_a_device_that_waits_from_one_step_into_the_next_waits_for_the_host():
    bound = device(
        *(mark("step", 0, 100, step=0), mark("step", 100, 200, step=1)),
        work("first", 10, 60, launch_ns=5, step=0),
        work("second", 130, 190, launch_ns=125, step=1),
    ).bound
    assert total(bound) == bound.window_ns == 200
    # Before each launch, and after the last event, as on the critical path.
    assert (bound.host_ns, bound.other_ns) == (5 + 65 + 10, 5 + 5)


def test_the_end_of_the_last_step_is_the_hosts_whatever_the_trace_holds_after_it():
    found = device(
        mark("step", 0, 100, step=0),
        work("first", 10, 60, launch_ns=5, step=0),
        work("after the steps", 130, 140, launch_ns=120),
    )
    assert (found.bound.host_ns, found.bound.other_ns) == (5 + 40, 5)
    path = {part.kind: part.time_ns for part in found.critical_path}
    assert (path["host"], path["latency"]) == (5 + 40, 5)


def test_an_event_that_runs_into_the_next_step_is_on_the_critical_path():
    found = device(
        *(mark("step", 0, 110, step=0), mark("step", 110, 200, step=1)),
        work("long", 20, 150, launch_ns=10, step=0),
        work("short", 150, 190, launch_ns=120, step=1),
    )
    path = {(part.kind, part.name): part.time_ns for part in found.critical_path}
    assert path == {
        ("compute", "long"): 90,
        ("latency", ""): 10,
        ("host", "outside the phases"): 10,
    }


def test_a_cpu_is_its_own_host():
    product = work("aten::mm", 40, 90, device="cpu", kind="operator", launch_ns=40, step=0)
    found = device(*step(100), product)
    assert (found.bound.input_ns, found.bound.host_ns, found.bound.other_ns) == (20, 30, 0)
    assert found.launches is None


def test_delays_and_queues():
    found = device(
        work("a", 100, 200, launch_ns=90),
        work("b", 200, 300, launch_ns=95),
        work("c", 300, 400, launch_ns=99),
        work("unknown", 400, 410),
    ).launches
    assert (found.launches, found.delay_median_ns, found.queue_largest) == (3, 105, 3)
    assert found.queue_median == 2
    # What has begun waits no longer.
    found = device(work("a", 100, 200, launch_ns=90), work("b", 300, 400, launch_ns=290)).launches
    assert (found.queue_median, found.queue_largest) == (1, 1)
    # A CUDA graph is launched once.
    graph = {"launch_ns": 10, "thread": 1, "graph": 3, "correlation": 5}
    found = device(*(work("k", t0, t0 + 50, **graph) for t0 in (60, 110, 160))).launches
    assert (found.launches, found.delay_median_ns, found.queue_largest) == (1, 50, 1)


def test_the_critical_path_passes_through_the_events_that_the_host_waits_for():
    found = device(
        *step(400),
        mark("", 150, 260, kind="wait", thread=1),
        work("first", 50, 150, launch_ns=40, step=0, stream=7),
        work("second", 150, 250, launch_ns=60, step=0, stream=7),
        work("beside", 160, 190, launch_ns=70, step=0, stream=8),
        # The host waited until 260 for the second, then launched the last at 300.
        work("last", 310, 380, launch_ns=300, step=0, stream=7),
    )
    path = {(part.kind, part.name): part.time_ns for part in found.critical_path}
    assert sum(path.values()) == 400
    assert path["compute", "first"] == path["compute", "second"] == 100
    assert ("compute", "beside") not in path
    # 20 to 40 before the first launch, 250 to 300 after the wait, 380 to 400 at the end.
    assert path["host", "forward"] == 20 + 50 + 20
    assert path["input", "data"] == 20
    assert path["latency", ""] == 10 + 10


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(-5, 40), st.integers(7, 8)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 20)), max_size=4),
    st.booleans(),
)
def test_path_and_parts_sum_to_the_step(events, waits, cpu):
    place = {"device": "cpu" if cpu else "cuda:0", "step": 0}
    found = device(
        *step(100),
        *(mark("", t0, t0 + length, kind="wait") for t0, length in waits),
        *(
            work("k", t0, t0 + length, launch_ns=t0 if cpu else t0 - delay, stream=stream, **place)
            for t0, length, delay, stream in events
        ),
    )
    window = found.steps[0].partition.window_ns
    assert total(found.bound) == found.bound.window_ns == window
    assert min(found.bound.model_dump().values()) >= 0
    assert sum(part.time_ns for part in found.critical_path) == window


@pytest.mark.parametrize(
    "call", ["cudaDeviceSynchronize", "cudaMemcpy", "hipMemcpyWithStream", "urEventWait"]
)
def test_calls_that_wait_for_the_device_are_read(tmp_path, call):
    rows = [
        complete("cuda_runtime", call, 10, 5),
        complete("cuda_runtime", "cudaMemcpyAsync", 20, 5),
        launch(1, 1),
        on_device("kernel", "gemm", 3, 9, 1),
    ]
    events = events_in(kineto(tmp_path / "trace.json", rows))
    (wait,) = [row for row in events if row["kind"] == "wait"]
    assert (wait["t0_ns"], wait["t1_ns"], wait["thread"]) == (10_000, 15_000, 1)


MAIN, AUTOGRAD, LOADER, PINNING = 1, 2, 3, 4
PHASES = [
    complete("user_annotation", f"phase:{phase}", begin, 20, tid=MAIN)
    for begin, phase in ((0, "forward"), (20, "backward"), (40, "optimizer"))
]
COPY = on_device("gpu_memcpy", "Memcpy HtoD (Pinned)", 51, 7, 4, 9, bytes=8)
WORK = [
    *(launch(1, 5, MAIN), on_device("kernel", "sgemm", 6, 10, 1)),
    *(launch(2, 25, AUTOGRAD), on_device("kernel", "sgemm", 26, 10, 2)),
    *(launch(3, 45, MAIN), on_device("kernel", "adam", 46, 3, 3)),
    *(launch(4, 50, PINNING), COPY),
    *(launch(5, 48, LOADER), on_device("kernel", "decode", 70, 5, 5, 9)),
    *(launch(6, 8, LOADER), on_device("kernel", "decode", 20, 5, 6, 9)),
]


@pytest.mark.parametrize(
    ("rows", "compute", "copies"),
    [
        (
            [*PHASES, *WORK],
            {"forward": 10_000, "backward": 10_000, "optimizer": 3_000, "loader": 10_000},
            {"loader": 7_000},
        ),
        # A thread with operators takes part in the training.
        (
            [*PHASES, *WORK, complete("cpu_op", "aten::to", 49, 5, tid=PINNING)],
            {"forward": 10_000, "backward": 10_000, "optimizer": 3_000, "loader": 10_000},
            {"optimizer": 7_000},
        ),
        # Without a range of backward, kernels of other threads may be those of autograd.
        (
            [*PHASES[::2], *WORK],
            {"forward": 15_000, "optimizer": 8_000, "loader": 0, "other": 10_000},
            {"loader": 7_000},
        ),
    ],
)
def test_work_of_loaders_is_listed_separately(tmp_path, rows, compute, copies):
    found = device_in(kineto(tmp_path / "trace.json", rows)).phases
    assert [(phase.phase, phase.compute_ns) for phase in found] == list(compute.items())
    assert {phase.phase: phase.copies_ns for phase in found if phase.copies_ns} == copies
    assert {phase.host_ns for phase in found if phase.phase in ("loader", "other")} == {None}
