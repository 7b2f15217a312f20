"""Collectives are matched within their process groups, unless ranks are missing."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function
from traces import complete, kineto, launch, of_rank, on_device

from schemas.results import Breakdown, CollectiveUse
from tests.distributed import run_ranks
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.trace.events.clocks import clock_offsets
from transformer_core.trace.events.event_table import rows_of
from transformer_core.trace.events.process import UNKNOWN_GROUP, usual_group

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def said(group: Sequence[int], **more: Any) -> dict[str, Any]:
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000}
    args |= {"Out msg nelems": 1000, "Group size": len(group)}
    return args | {"Process Group Ranks": json.dumps(list(group))} | more


def broken_down(
    folder: Path, rows: Mapping[int, Sequence[dict[str, Any]]], world: int, **more: Any
) -> Breakdown:
    """The breakdown of the traces of these ranks."""
    files = [
        kineto(folder / f"rank{rank}.json", mine, **of_rank(rank, world, **more))
        for rank, mine in rows.items()
    ]
    return breakdown_of_files(files, "groups")[0]


def four(folder: Path, ranks: Sequence[int] = range(4)) -> Breakdown:
    """An all-reduce on each rank, in the groups {0, 1} and {2, 3}, of different lengths."""
    kernels = {}
    for rank in ranks:
        group, time = [0, 1] if rank < 2 else [2, 3], [250, 500, 500, 750][rank]
        kernels[rank] = [on_device("kernel", ALL_REDUCE, 0, time, 1, **said(group))]
    return broken_down(folder, kernels, 4)


def collectives(breakdown: Breakdown) -> list[CollectiveUse]:
    return [use for device in breakdown.devices for use in device.collectives]


def test_two_groups_of_two_ranks(tmp_path):
    found = four(tmp_path)
    transfers = [use.transfer_ns for use in collectives(found)]
    waits = [use.waiting_ns for use in collectives(found)]
    assert transfers == [250_000, 250_000, 500_000, 500_000]
    assert waits == [0, 250_000, 0, 250_000]
    (whole,) = found.summary.collectives
    assert (whole.transfer_ns, whole.waiting_ns) == (1_500_000, 500_000)
    named = [(s.rank, s.last, s.share, s.caused_ns) for s in found.summary.stragglers]
    assert named == [(0, 1, 0.5, 250_000), (2, 1, 0.5, 250_000), (1, 0, 0.0, 0), (3, 0, 0.0, 0)]
    assert found.notes == [
        "4 of 4 device events have no launch in the trace: phase and operator of those are "
        "unknown, and the host-bound time is a lower bound"
    ]


def test_a_rank_alone_in_its_group_waits_for_nobody(tmp_path):
    """A collective of one rank has no last rank."""
    kernels = {
        rank: [
            on_device("kernel", ALL_REDUCE, 0, 100 + rank, 1, **said([0, 1])),
            *(on_device("kernel", ALL_REDUCE, 200 * k, 9, k, **said([rank])) for k in (2, 3)),
        ]
        for rank in (0, 1)
    }
    found = broken_down(tmp_path, kernels, 2)
    named = [(s.rank, s.last, s.share, s.caused_ns) for s in found.summary.stragglers]
    assert named == [(0, 1, 1.0, 1_000), (1, 0, 0.0, 0)]
    assert all(use.transfer_ns is not None for use in collectives(found))


def test_a_rank_of_a_group_is_missing(tmp_path):
    found = four(tmp_path, ranks=(0, 1, 3))
    assert [use.transfer_ns for use in collectives(found)] == [250_000, 250_000, None]
    assert [use.bus_bandwidth is None for use in collectives(found)] == [False, False, True]
    assert any("no trace of rank 2 of its group holds it" in note for note in found.notes)
    assert any("These are 3 of the 4 ranks" in note for note in found.notes)


def test_ranks_that_ran_a_collective_different_numbers_of_times(tmp_path):
    kernels = [on_device("kernel", ALL_REDUCE, 10 * k, 5, k, **said([0, 1])) for k in range(3)]
    found = broken_down(tmp_path, {0: kernels, 1: kernels[:2]}, 2)
    assert [use.waiting_ns for use in collectives(found)] == [None, None]
    assert any("the ranks ran it 2 to 3 times" in note for note in found.notes)


def test_an_all_to_all_that_runs_as_sends_and_receives(tmp_path):
    told = said([0, 1]) | {"Collective name": "all_to_allv"}
    inputs = {"Input Dims": [[500]], "Input type": ["float"]}
    rows = {
        rank: [
            on_device("kernel", SEND_RECV, 0, 4 + rank, 1, **told),
            complete("user_annotation", "nccl:all_to_all", 0, 5, **inputs),
            launch(2, 2),
            on_device("kernel", SEND_RECV, 10, 4 + rank, 2),
            on_device("kernel", SEND_RECV, 20, 4, 3, **told | {"Collective name": "send"}),
        ]
        for rank in (0, 1)
    }
    found = broken_down(tmp_path, rows, 2)
    named = [(use.collective, use.count, use.bytes) for use in found.devices[0].collectives]
    assert named == [("all_to_all", 2, 4000 + 2000), ("send_recv", 1, 4000)]
    # (p - 1) / p of 6000 bytes in 2 times 4 microseconds.
    assert found.devices[0].collectives[0].bus_bandwidth == pytest.approx(3000 / 8e-6)


def test_messages_of_a_pipeline_are_not_matched_by_their_order(tmp_path):
    """Rank 0 sends three times, then receives; rank 1 receives and sends in turns."""
    times = {0: (0, 100, 200, 300, 400, 500), 1: (0, 60, 100, 160, 200, 260)}
    rows = {
        rank: [on_device("kernel", SEND_RECV, at, 5, at, **said([0, 1])) for at in mine]
        for rank, mine in times.items()
    }
    files = [
        kineto(tmp_path / f"{rank}.json", mine, **of_rank(rank)) for rank, mine in rows.items()
    ]
    breakdown, reading = breakdown_of_files(files, "pipeline")
    assert [(use.count, use.transfer_ns) for use in collectives(breakdown)] == [(6, None)] * 2
    assert any("pair ranks, in an order that differs" in note for note in breakdown.notes)
    assert breakdown.summary.stragglers == []
    # Their clocks agree, although few of these overlap.
    assert [offset.nanoseconds for offset in clock_offsets(rows_of(reading.events).work)] == [0, 0]
    # Both ranks exchange at once.
    rows[1] = [on_device("kernel", SEND_RECV, at + 1, 4, at, **said([0, 1])) for at in times[0]]
    assert [use.transfer_ns for use in collectives(broken_down(tmp_path, rows, 2))] == [24_000] * 2


ALL, SOME = {"pg_name": "0", "ranks": [0, 1, 2]}, {"pg_name": "1", "ranks": [0, 1]}


@pytest.mark.parametrize(
    ("groups", "usual"),
    [
        ([{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}], "0,1"),
        ([SOME, {"pg_name": "2", "ranks": [1, 0]}], "0,1"),
        ([ALL, SOME], UNKNOWN_GROUP),
        ([{"pg_name": "0", "ranks": [0]}], None),
        (None, None),
        (["text", {"ranks": "0, 1"}], None),
    ],
)
def test_the_group_of_collectives_that_do_not_name_it(groups, usual):
    assert usual_group({"pg_config": groups}) == usual


def test_gloo_in_several_groups_is_not_guessed(tmp_path):
    """A gloo trace lists the groups, but does not say in which one an operation ran."""
    multiply = complete("cpu_op", "aten::mul", 10, 5)
    rows = {
        rank: [complete("user_annotation", "gloo:all_reduce", 0, 5 + rank, tid=9), multiply]
        for rank in range(2)
    }
    found = broken_down(tmp_path, rows, 2, pg_config=[ALL, SOME])
    assert [use.transfer_ns for use in collectives(found)] == [None, None]
    assert any("does not say which ran it" in note for note in found.notes)


def test_an_execution_that_begins_before_the_end_of_a_step_on_one_rank_and_after_it_on_another(
    tmp_path,
):
    step = [
        complete("user_annotation", "phase:step", 0, 100),
        complete("cpu_op", "aten::mul", 10, 5),
        complete("user_annotation", "gloo:all_reduce", 20, 10, tid=9),
    ]
    late = {
        rank: complete("user_annotation", "gloo:all_reduce", 99 + 2 * rank, 30 - 2 * rank, tid=9)
        for rank in range(2)
    }
    found = broken_down(tmp_path, {rank: [*step, row] for rank, row in late.items()}, 2)
    named = [(use.count, use.transfer_ns, use.waiting_ns) for use in collectives(found)]
    assert named == [(2, 38_000, 2_000), (1, 10_000, 0)]


def record_gloo(folder: Path) -> None:
    """Records collectives in two groups of the same ranks; rank 1 is late for each."""
    rank, again = dist.get_rank(), dist.new_group([0, 1])
    dist.new_group([0])
    values = torch.ones(200_000)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            with record_function("phase:step"):
                for _ in range(1 + 4 * rank):
                    values = values * 1.5
                dist.all_reduce(values)
                dist.all_reduce(values[:1000], group=again)
                dist.broadcast(values[:500], 0)
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))


def raw(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Begin and length in nanoseconds of the collectives in a file, by name, in order of time."""
    found = defaultdict(list)
    for event in json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]:
        if event.get("ph") == "X" and event["name"].startswith("gloo:"):
            begin, length = (round(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            found[event["name"].removeprefix("gloo:")].append((begin, length))
    return {name: sorted(events) for name, events in found.items()}


@pytest.mark.slow
def test_groups_of_the_same_ranks_against_the_raw_file(tmp_path):
    run_ranks(record_gloo, 2, tmp_path)
    files = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    breakdown, _ = breakdown_of_files(files, "gloo")
    ranks = [raw(path) for path in files]
    counts = {name: len(events) for name, events in ranks[0].items()}
    assert counts == {"all_reduce": 6, "broadcast": 3}
    lost = 0
    for device, mine in zip(breakdown.devices, ranks, strict=True):
        found = {use.collective: use for use in device.collectives}
        assert set(found) == set(mine)
        for name, events in mine.items():
            total = sum(length for _, length in events)
            both = zip(*(other[name] for other in ranks), strict=True)
            transfer = sum(min(length for _, length in pair) for pair in both)
            assert (found[name].count, found[name].time_ns) == (len(events), total)
            assert found[name].transfer_ns == transfer
            assert found[name].waiting_ns == total - transfer
        assert found["all_reduce"].bytes == 3 * 4 * (200_000 + 1000)
        assert len(device.steps) == 3
        lost += sum(use.waiting_ns for use in found.values())
    assert sum(rank.caused_ns for rank in breakdown.summary.stragglers) == lost
