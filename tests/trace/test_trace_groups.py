"""Collectives are matched within their process groups, and not at all where ranks are missing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from traces import complete, kineto, on_device

from schemas.results import Breakdown, CollectiveUse
from transformer_core.trace.breakdown.profile import breakdown_of_files
from transformer_core.trace.events.process import (
    UNKNOWN_GROUP,
    group_of,
    groups_by_name,
    ranks_of,
    usual_group,
)

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def said(group: Sequence[int], **more: Any) -> dict[str, Any]:
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000}
    args |= {"Out msg nelems": 1000, "Group size": len(group)}
    return args | {"Process Group Ranks": json.dumps(list(group))} | more


def trace(folder: Path, rank: int, kernels: Sequence[dict[str, Any]], world: int) -> Path:
    head = {"distributedInfo": {"rank": rank, "world_size": world}}
    return kineto(folder / f"rank{rank}.json", kernels, **head)


def four(folder: Path, times: Sequence[float], ranks: Sequence[int] = range(4)) -> Breakdown:
    """An all-reduce of so many milliseconds on each rank, in the groups {0, 1} and {2, 3}."""
    files = []
    for rank in ranks:
        group = [0, 1] if rank < 2 else [2, 3]
        kernel = on_device("kernel", ALL_REDUCE, 0, 1000 * times[rank], 1, **said(group))
        files.append(trace(folder, rank, [kernel], 4))
    return breakdown_of_files(files, "groups")[0]


def collectives(breakdown: Breakdown) -> list[CollectiveUse]:
    return [use for device in breakdown.devices for use in device.collectives]


def test_two_groups_of_two_ranks(tmp_path: Path) -> None:
    found = four(tmp_path, [0.25, 0.5, 0.5, 0.75])
    transfers = [use.transfer_ns for use in collectives(found)]
    waits = [use.waiting_ns for use in collectives(found)]
    assert transfers == [250_000, 250_000, 500_000, 500_000]
    assert waits == [0, 250_000, 0, 250_000]
    assert found.summary is not None
    (whole,) = found.summary.collectives
    assert (whole.transfer_ns, whole.waiting_ns) == (1_500_000, 500_000)
    named = [(s.rank, s.last, s.share, s.caused_ns) for s in found.summary.stragglers]
    assert named == [(0, 1, 0.5, 250_000), (2, 1, 0.5, 250_000), (1, 0, 0.0, 0), (3, 0, 0.0, 0)]
    assert found.notes == [
        "4 of 4 device events have no launch in the trace: phase and operator of those are "
        "unknown, and the host-bound time is a lower bound"
    ]


def test_a_rank_of_a_group_is_missing(tmp_path: Path) -> None:
    found = four(tmp_path, [0.25, 0.5, 0.5, 0.75], ranks=(0, 1, 3))
    assert [use.transfer_ns for use in collectives(found)] == [250_000, 250_000, None]
    assert [use.bus_bandwidth is None for use in collectives(found)] == [False, False, True]
    assert any("no trace of rank 2 of its group" in note for note in found.notes)
    assert any("These are 3 of the 4 ranks" in note for note in found.notes)


def test_ranks_that_ran_it_unequally_often(tmp_path: Path) -> None:
    kernels = [on_device("kernel", ALL_REDUCE, 10 * k, 5, k, **said([0, 1])) for k in range(3)]
    files = [trace(tmp_path, 0, kernels, 2), trace(tmp_path, 1, kernels[:2], 2)]
    found, _ = breakdown_of_files(files, "unequal")
    assert [use.waiting_ns for use in collectives(found)] == [None, None]
    assert any("unequally often, 2 to 3 times" in note for note in found.notes)


def test_one_rank_of_many(tmp_path: Path) -> None:
    kernel = on_device("kernel", ALL_REDUCE, 0, 5, 1, **said([0, 1]))
    found, _ = breakdown_of_files([trace(tmp_path, 0, [kernel], 2)], "one")
    assert collectives(found)[0].transfer_ns is None
    assert any("no trace of rank 1" in note for note in found.notes)


def test_an_all_to_all_that_runs_as_sends_and_receives(tmp_path: Path) -> None:
    told = said([0, 1]) | {"Collective name": "all_to_allv"}
    files = []
    for rank in (0, 1):
        rows = [
            on_device("kernel", SEND_RECV, 0, 4 + rank, 1, **told),
            complete("user_annotation", "nccl:all_to_all", 0, 5)
            | {"args": {"Input Dims": [[500]], "Input type": ["float"]}},
            complete("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=2),
            on_device("kernel", SEND_RECV, 10, 4 + rank, 2),
            on_device("kernel", SEND_RECV, 20, 4, 3, **said([0, 1], **{"Collective name": "send"})),
        ]
        files.append(trace(tmp_path, rank, rows, 2))
    found, _ = breakdown_of_files(files, "alltoall")
    named = [(use.collective, use.count, use.bytes) for use in found.devices[0].collectives]
    assert named == [("all_to_all", 2, 4000 + 2000), ("send_recv", 1, 4000)]
    # (p - 1) / p of 6000 bytes in 2 times 4 microseconds.
    assert found.devices[0].collectives[0].bus_bandwidth == pytest.approx(3000 / 8e-6)


CONFIG = {
    "one": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}],
    "same": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": [1, 0]}],
    "several": [{"pg_name": "0", "ranks": [0, 1, 2]}, {"pg_name": "1", "ranks": [0, 1]}],
    "alone": [{"pg_name": "0", "ranks": [0]}],
    "nothing": None,
    "wrong": ["text", {"ranks": "0, 1"}],
}
USUAL = {"one": "0,1", "same": "0,1", "several": UNKNOWN_GROUP}


@pytest.mark.parametrize("name", CONFIG)
def test_the_group_of_collectives_that_do_not_name_it(name: str) -> None:
    assert usual_group({"pg_config": CONFIG[name]}) == USUAL.get(name)


def test_texts_of_groups() -> None:
    assert group_of("[0, 2, 1]") == group_of([2, 1, 0]) == "0,1,2"
    assert group_of("[0, 1, ..., 127]") is None
    assert group_of("") is group_of(None) is None
    assert ranks_of("0,12") == (0, 12)
    assert ranks_of("#tp") is None
    assert groups_by_name({"pg_config": CONFIG["one"]}) == {"#0": "0,1"}


def test_gloo_in_several_groups_is_not_guessed(tmp_path: Path) -> None:
    """A trace of gloo lists the groups, and does not say which of them an operation ran in."""
    files = []
    for rank in range(2):
        groups = [{"pg_name": "0", "ranks": [0, 1, 2]}, {"pg_name": "1", "ranks": [0, 1]}]
        rows = [complete("user_annotation", "gloo:all_reduce", 0, 5 + rank, tid=9)]
        rows.append(complete("cpu_op", "aten::mul", 10, 5))
        head = {"rank": rank, "world_size": 2, "pg_config": groups}
        files.append(kineto(tmp_path / f"r{rank}.json", rows, distributedInfo=head))
    found, _ = breakdown_of_files(files, "gloo")
    assert [use.transfer_ns for use in collectives(found)] == [None, None]
    assert any("does not say which ran it" in note for note in found.notes)
