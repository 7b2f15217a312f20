"""Two ranks of gloo with several groups, recorded here, against sums made of the raw file."""

import json
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from schemas.results import Breakdown
from transformer_core.trace.breakdown.profile import breakdown_of_files

pytestmark = pytest.mark.slow

RANKS = 2
RECORDED = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=int(sys.argv[3])
)
again = dist.new_group([0, 1])
dist.new_group([0])
values = torch.ones(200_000)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for step in range(3):
        with record_function("phase:step"):
            for _ in range(1 + 4 * rank):
                values = values * 1.5
            dist.all_reduce(values)
            dist.all_reduce(values[:1000], group=again)
            dist.broadcast(values[:500], 0)
profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
dist.barrier()
"""


def record(folder: Path) -> list[Path]:
    folder.mkdir()
    running = [
        subprocess.Popen([sys.executable, "-c", RECORDED, str(rank), str(folder), str(RANKS)])
        for rank in range(RANKS)
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * RANKS
    return [folder / f"rank{rank}.json" for rank in range(RANKS)]


def raw(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Begin and length in nanoseconds of the collectives in a file, by name, in order of time."""
    found = defaultdict(list)
    for event in json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]:
        if event.get("ph") == "X" and event["name"].startswith("gloo:"):
            begin, length = (round(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            found[event["name"].removeprefix("gloo:")].append((begin, length))
    return {name: sorted(events) for name, events in found.items()}


def covered(events: list[tuple[int, int]]) -> int:
    total, end = 0, 0
    for begin, length in sorted(events):
        total += max(0, begin + length - max(begin, end))
        end = max(end, begin + length)
    return total


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return record(tmp_path_factory.mktemp("gloo") / "same")


def uses(breakdown: Breakdown, rank: int) -> dict[str, Any]:
    (device,) = [device for device in breakdown.devices if device.rank == rank]
    return {use.collective: use for use in device.collectives}


def test_groups_of_the_same_ranks_against_the_raw_file(files: list[Path]) -> None:
    breakdown, _ = breakdown_of_files(files, "gloo")
    ranks = [raw(path) for path in files]
    assert {name: len(events) for name, events in ranks[0].items()} == {
        "all_reduce": 6,
        "broadcast": 3,
    }
    for rank, mine in enumerate(ranks):
        found = uses(breakdown, rank)
        assert set(found) == set(mine)
        for name, events in mine.items():
            total = sum(length for _, length in events)
            both = zip(*(other[name] for other in ranks), strict=True)
            transfer = sum(min(length for _, length in pair) for pair in both)
            assert (found[name].count, found[name].time_ns) == (len(events), total)
            assert found[name].union_ns == covered(events)
            assert found[name].transfer_ns == transfer
            assert found[name].waiting_ns == total - transfer
        assert found["all_reduce"].bytes == 3 * 4 * (200_000 + 1000)
        (device,) = [device for device in breakdown.devices if device.rank == rank]
        assert device.span.communication_ns == covered([e for some in mine.values() for e in some])
        assert len(device.steps) == 3
    assert breakdown.summary is not None
    lost = sum(use.waiting_ns for rank in range(RANKS) for use in uses(breakdown, rank).values())
    assert sum(rank.caused_ns for rank in breakdown.summary.stragglers) == lost


def test_one_rank_alone_has_no_waiting(files: list[Path]) -> None:
    breakdown, _ = breakdown_of_files(files[1:], "gloo")
    assert {use.transfer_ns for use in uses(breakdown, 1).values()} == {None}
    assert any("no trace of rank 0 of its group" in note for note in breakdown.notes)
