"""Collective operations: right results, sizes and bandwidths as nccl-tests defines them."""

import math
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from schemas.config.measurement import Limits
from schemas.config.parallel import Machine
from schemas.results import COLLECTIVE_COLUMNS, CollectiveRun
from tests.distributed import run_ranks
from tests.orders import run_job
from tests.records import collective_run
from transformer_core.common.digests import NAME
from transformer_core.measure import collectives_worker as worker
from transformer_core.measure.collectives import write_table
from transformer_core.measure.collectives_worker import (
    COLLECTIVES,
    Exchange,
    bus_factor,
    measure,
    sizes,
)
from transformer_core.parallel.strategy import ProcessGroupStrategy
from transformer_core.parallel.topology import Process

LIMITS = Limits(seconds=0.0005, smallest_message=4096, largest_message=65536)


def measured(device: str, limits: str) -> list[tuple[Any, ...]]:
    """The rows of a rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(where)
    process = Process(rank, world_size, rank, world_size, where)
    strategy = ProcessGroupStrategy(process, Machine())
    return measure(strategy, Limits.model_validate_json(limits))


def right_and_wrong(limits: str) -> list[list[tuple[Any, ...]]]:
    """The rows of a rank before and after one operation gives NaN on the last rank."""
    right = worker.exchange

    def wrong(name: str, *arguments: Any) -> Exchange:
        made = right(name, *arguments)
        result = made.result
        if name != "all_gather" or result is None:
            return made
        return Exchange(lambda: (made.run(), result.fill_(torch.nan)), result, made.expected, [])

    before = measured("cpu", limits)
    if dist.get_rank() == dist.get_world_size() - 1:
        worker.exchange = wrong
    return [before, measured("cpu", limits)]


def check(rows: list[tuple[Any, ...]], ranks: int) -> None:
    assert list(dict.fromkeys(row[0] for row in rows)) == list(COLLECTIVES)
    for name, size, calls, seconds, algorithm, bus, error in rows:
        assert error == 0.0, name
        assert calls >= 1
        assert algorithm == pytest.approx(size / seconds)
        assert bus == pytest.approx(algorithm * bus_factor(name, ranks))


@pytest.mark.slow
def test_every_operation_gives_the_right_result_and_a_wrong_one_on_any_rank_is_seen():
    (rows, spoiled), second, _ = run_ranks(right_and_wrong, 3, LIMITS.canonical_json())
    assert [rows, spoiled] == second, "all ranks report the slowest rank's numbers"
    check(rows, 3)
    assert {row[1] for row in rows} == {4 * count for count in sizes(LIMITS, 3)}
    assert {row[0]: row[-1] for row in spoiled if row[-1] != 0} == {"all_gather": math.inf}


def test_factors_of_the_bus_bandwidth_for_four_ranks():
    factors = [bus_factor(collective, 4) for collective in COLLECTIVES]
    assert factors == [1.0, 0.75, 0.75, 1.0, 0.75, 0.75, 1.5, 1.5]


def test_sizes_grow_by_four_and_can_be_divided():
    limits = Limits(smallest_message=4096, largest_message=2**24)
    counts = list(sizes(limits, 3))
    assert all(count % 3 == 0 for count in counts)
    assert [round(4 * count / 4096) for count in counts] == [4**n for n in range(7)]


@pytest.mark.slow
def test_a_single_process_is_unsupported(tmp_path):
    file = tmp_path / "collectives.parquet"
    machine = {"device": "cpu", "devices_per_node": 1}
    assert run_job("collectives", machine=machine, output=file) == 0
    table = pq.read_table(file)
    run = CollectiveRun.model_validate_json(table.schema.metadata[b"study"])
    assert run.status == "unsupported"
    assert "does not communicate" in str(run.reason)
    assert table.num_rows == 0
    assert table.column_names == list(COLLECTIVE_COLUMNS)
    assert {path.name for path in tmp_path.iterdir()} == {file.name, NAME}


def test_the_table_keeps_rows_and_origin(tmp_path):
    run = collective_run(command="again")
    file = tmp_path / "new" / "collectives.parquet"
    write_table(file, [("broadcast", 4096, 3, 0.5, 8192.0, 8192.0, 0.0)], run)
    table = pq.read_table(file)
    (row,) = table.to_pylist()
    assert row.keys() == COLLECTIVE_COLUMNS.keys()
    assert [*row.values()] == ["broadcast", 4096, 3, 0.5, 8192.0, 8192.0, 0.0]
    assert CollectiveRun.model_validate_json(table.schema.metadata[b"study"]) == run


@pytest.mark.gpu(2)
def test_every_operation_gives_the_right_result_over_nccl():
    rows, _ = run_ranks(measured, 2, "cuda", LIMITS.canonical_json(), backend="nccl")
    check(rows, 2)
