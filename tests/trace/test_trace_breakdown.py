"""Breakdowns of event tables that are written out by hand."""

from typing import Any

import pytest
from traces import event_table, mark, talk, work

from schemas.results import CollectiveUse, DeviceBreakdown
from transformer_core.trace.breakdown.devices import break_down
from transformer_core.trace.events.collectives import bus_factor, collective_of, message_bytes


def devices(*rows: dict[str, Any]) -> list[DeviceBreakdown]:
    return break_down(event_table(rows))


def device(*rows: dict[str, Any]) -> DeviceBreakdown:
    (found,) = devices(*rows)
    return found


def test_activities_share_the_sum_of_all_device_time() -> None:
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


def test_streams_count_their_own_time() -> None:
    found = device(work("a", 0, 10), work("b", 5, 15), work("c", 90, 100, stream=9))
    assert [(s.stream, s.events, s.busy_ns, s.occupancy) for s in found.streams] == [
        (7, 2, 15, 0.15),
        (9, 1, 10, 0.1),
    ]


def test_a_step_lasts_until_what_it_launched_has_ended() -> None:
    found = device(
        mark("step", 0, 100),
        mark("step", 200, 300),
        work("a", 50, 150, step=0),
        work("b", 250, 420, step=1),
    )
    windows = [(s.step, s.start_ns, s.partition.window_ns) for s in found.steps]
    assert windows == [(0, -50, 150), (1, 150, 220)]
    assert [s.partition.compute_ns for s in found.steps] == [100, 170]
    assert found.profiled.window_ns == 370
    assert found.span.window_ns == 370  # 50 to 420


def test_an_event_over_the_border_of_steps_counts_in_both_by_part() -> None:
    found = device(mark("step", 0, 100), mark("step", 100, 200), work("a", 80, 130, step=0))
    assert [s.partition.compute_ns for s in found.steps] == [20, 30]
    assert [s.partition.window_ns for s in found.steps] == [100, 100]


def test_without_steps_the_span_is_profiled() -> None:
    found = device(work("a", 10, 20), work("b", 30, 40))
    assert found.steps == []
    assert found.profiled == found.span


def test_waiting_is_what_exceeds_the_fastest_rank() -> None:
    """Two executions: rank 1 comes late to the first, rank 0 to the second."""
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


def test_executions_that_do_not_match_have_no_transfer() -> None:
    found = devices(
        talk("all_reduce", 0, 50, rank=0),
        talk("all_reduce", 60, 70, rank=0),
        talk("all_reduce", 0, 50, rank=1),
    )
    for one in found:
        (collective,) = one.collectives
        assert (collective.transfer_ns, collective.waiting_ns) == (None, None)
        assert (collective.bus_bandwidth, collective.bytes) == (None, None)


def test_one_rank_alone_says_nothing_of_waiting() -> None:
    (found,) = device(talk("all_reduce", 0, 50, bytes=8, group_size=2)).collectives
    assert isinstance(found, CollectiveUse)
    assert (found.bytes, found.transfer_ns, found.bus_bandwidth) == (8, None, None)


def test_idle_time_until_a_launch_is_bound_by_the_host() -> None:
    found = device(
        work("a", 0, 10, launch_ns=0),
        work("b", 50, 60, launch_ns=40),  # idle 10 to 50, launched at 40: 30 of it
        work("c", 70, 80, launch_ns=5),  # launched long before: waits for something else
        work("d", 90, 95),  # launch unknown
        work("e", 100, 110, launch_ns=130),  # clocks differ: no more than the gap of 5
    )
    assert (found.span.idle_ns, found.host_bound_ns) == (65, 35)


def test_a_cpu_has_no_gpu_fields() -> None:
    found = device(work("aten::mm", 0, 10, device="cpu", kind="operator", launch_ns=0))
    whole = found.span
    assert (whole.exposed_copies_ns, whole.exposed_graphs_ns) == (None, None)
    assert found.host_bound_ns is None
    assert found.kernels == 1


def test_phases_own_what_they_launch() -> None:
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


def test_backward_against_forward() -> None:
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


def test_operator_classes_without_shapes_have_time_alone() -> None:
    found = device(
        work("gemm", 0, 10, operator_class="contraction", flops=60, operator_bytes=20),
        work("gemm", 10, 40, operator_class="contraction"),
        work("softmax", 40, 50, operator_class="normalization"),
        work("relu", 50, 60, operator_class="element_wise", flops=5),
    )
    contraction, normalization, element_wise = found.operators
    assert (contraction.time_ns, contraction.counted_ns, contraction.intensity) == (40, 10, 3.0)
    assert contraction.share == pytest.approx(40 / 60)
    assert (normalization.flops, normalization.bytes, normalization.intensity) == (None,) * 3
    assert (element_wise.flops, element_wise.bytes, element_wise.intensity) == (5, None, None)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 8>(...)", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<half, 2>(...)", "all_reduce"),
        ("ncclDevKernel_Mystery", "other"),
        ("gloo:broadcast", "broadcast"),
        ("void at::native::reduce_kernel<512, 1, MeanOps>(...)", None),
        ("void at::native::(anonymous namespace)::gather_kernel()", None),
        ("sm80_xmma_gemm_f32f32", None),
    ],
)
def test_names_of_collectives(name: str, collective: str | None) -> None:
    assert collective_of(name) == collective


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert message_bytes("all_reduce", 100, None, None) == 100
    assert message_bytes("all_gather", 100, None, 4) == 400
    assert message_bytes("all_gather", 100, None, None) is None
    assert message_bytes("reduce_scatter", 400, 100, 4) == 400
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1
    assert bus_factor("all_reduce", 1) is None
    assert bus_factor("barrier", 4) is None
