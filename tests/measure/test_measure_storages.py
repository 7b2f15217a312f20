"""The memory of a tracked step: storages, their purposes, and torch's own count."""

import threading

import pytest
import torch

from schemas.results import PARTS
from transformer_core.observe.followed_step import Interval, StepMemory, Storage, StorageTracker
from transformer_core.observe.milestones import CpuAllocations

N = 1000
SIZE = 4 * N


def alive(tracker: StorageTracker) -> int:
    return sum(record.size for record, _ in tracker.alive.values())


def test_storages_live_as_long_as_their_tensors():
    with StorageTracker("cpu") as tracker:
        x = torch.ones(N)
        view = x[: N // 2]
        assert alive(tracker) == SIZE
        del x
        assert alive(tracker) == SIZE
        del view
        assert alive(tracker) == 0
        y = torch.ones(N) + 1  # the first is gone with the sum
        assert alive(tracker) == SIZE
        first, second = tracker.storages[1:]
        assert first.died == second.born
    assert y.sum() == 2 * N


def test_a_storage_that_is_resized_changes_its_size():
    with StorageTracker("cpu") as tracker:
        x = torch.ones(N)
        tracker.label([x], "weights")
        x.untyped_storage().resize_(0)
        assert alive(tracker) == 0
        x.untyped_storage().resize_(SIZE)
        assert alive(tracker) == SIZE
        (record,) = (record for record, _ in tracker.alive.values())
        assert record.labels == {"weights"}
    assert torch.UntypedStorage.resize_.__name__ != "followed"


def tracked(*records: Storage) -> StorageTracker:
    tracker = StorageTracker("cpu")
    tracker.storages = list(records)
    return tracker


PHASES = [Interval("forward", 10, 20), Interval("backward", 20, 30), Interval("update", 30, 40)]


def test_each_storage_belongs_to_one_part():
    step = StepMemory(
        tracked(
            Storage(1, 0, labels={"weights"}),
            Storage(2, 0, labels={"weights", "master"}),
            Storage(4, 12, 24, {"copy"}),
            Storage(8, 22, None, {"gradients", "message"}),
            Storage(16, 3, None, {"optimizer"}),
            Storage(32, 5, None, {"message"}),  # alive since before the step: a bucket
            Storage(64, 11, 35, {"message"}),
            Storage(128, 15, 22),
            Storage(256, 15, 16),
            Storage(512, 3, None, {"other"}),
            Storage(1024, 2, 9),  # gone before the step
            Storage(2048, 41),  # comes after it
        ),
        PHASES,
    )
    values = [getattr(step.largest, part) for part in PARTS]
    assert values == [1 + 4, 2, 8, 16, 32, 64, 128, 256 + 512]


def test_the_parts_at_the_peak_add_up_to_it():
    step = StepMemory(
        tracked(Storage(10, 0, None, {"weights"}), Storage(5, 14, 25), Storage(7, 25, 33)), PHASES
    )
    # The freed storage and its replacement exist together for a moment.
    assert step.total.max() == 22
    assert step.at_peak.total_bytes == 22
    assert step.at_peak.activations_bytes == 5
    assert step.at_peak.temporary_bytes == 7


def test_the_timeline_keeps_the_peak_and_the_order():
    step = StepMemory(tracked(Storage(10, 0), Storage(90, 23, 24)), PHASES)
    timeline = step.timeline(6)
    assert [point.phase for point in timeline] == sorted(
        (point.phase for point in timeline), key=["forward", "backward", "update"].index
    )
    positions = [point.position for point in timeline]
    assert positions == sorted(positions)
    assert 0 <= positions[0] <= positions[-1] <= 1
    assert max(point.parts.total_bytes for point in timeline) == 100


def test_allocations_are_counted_at_marks_and_between_them():
    with CpuAllocations() as counted:
        counted.mark("start")
        x = torch.ones(N)
        counted.mark("one")
        y = x + torch.ones(N)
        counted.mark("two")
        del y
        counted.mark("two")  # the first of equal marks counts
        x.sort()
        counted.mark("end")
    assert [counted.at(mark) for mark in ("start", "one", "two", "end")] == [
        0,
        SIZE,
        2 * SIZE,
        SIZE,
    ]
    assert counted.at("never") is None
    # A mark takes 4 bytes for a moment.
    assert counted.peak("start", "one") == pytest.approx(SIZE, abs=4)
    assert counted.peak("one", "two") == pytest.approx(3 * SIZE, abs=4)
    assert counted.peak("two", "end") >= SIZE + 3 * SIZE, "values and positions of the sort"


def test_memory_freed_by_another_thread_is_counted():
    """The profiler does not know that thread, like those of gloo."""
    with CpuAllocations() as counted:
        counted.mark("start")
        held = [torch.ones(N)]
        counted.mark("there")
        release = threading.Thread(target=held.clear)
        release.start()
        release.join()
        counted.mark("gone")
    assert (counted.at("there"), counted.at("gone")) == (SIZE, 0)
