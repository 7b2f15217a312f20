"""Bytes that torch's CPU allocator has handed out."""

import threading
import time

import pytest
import torch

from transformer_core.observe.followed_step import StorageTracker
from transformer_core.observe.milestones import CpuAllocations, _changes

N = 50_000


def test_counts_at_marks_and_peaks_between_them() -> None:
    with CpuAllocations() as counted:
        counted.mark("start")
        x = torch.ones(N)
        counted.mark("one")
        y = x + torch.ones(N)
        counted.mark("two")
        del y
        counted.mark("two")  # the first of equal marks counts
        counted.mark("end")
    assert counted.at("start") == 0
    assert counted.at("one") == 4 * N
    assert counted.at("two") == 8 * N
    assert counted.at("end") == 4 * N
    assert counted.at("never") is None
    assert counted.peak("start", "one") == 4 * N
    assert counted.peak("one", "two") == 12 * N
    assert counted.peak("two", "end") == 8 * N


def test_pieces_of_an_earlier_count_do_not_count() -> None:
    with CpuAllocations() as counted:
        counted.mark("start")
        old = torch.ones(N)
    with CpuAllocations() as counted:
        counted.mark("start")
        x = torch.ones(2 * N)
        del old
        counted.mark("end")
    assert counted.at("start") == 0
    assert counted.at("end") == x.nbytes


def test_work_space_inside_a_kernel_counts() -> None:
    values = torch.rand(N)
    with CpuAllocations() as counted:
        counted.mark("start")
        values.sort()
        counted.mark("end")
    results = 4 * N + 8 * N
    assert counted.peak("start", "end") >= results


Told = tuple[float, int, int]
A, B = 100, 200


@pytest.mark.parametrize(
    ("told", "deaths", "after"),
    [
        # Told by the allocator; what was there before does not count.
        ([(1, A, 8), (2, A, -8), (3, B, -4)], [], {1: 8, 2: 0, 3: 0}),
        # An end that nobody told is that of the storage,
        ([(1, A, 8), (2, B, 4)], [(A, 3.0)], {2: 12, 3: 4}),
        # or at the latest when the address is handed out again.
        ([(1, A, 8), (5, A, 4)], [], {1: 8, 4: 8, 5: 4}),
        ([(1, A, 8), (5, A, 4)], [(A, 2.0)], {2: 0, 5: 4}),
        # The end of an earlier storage at the address is none of its,
        ([(1, A, 8), (2, A, -8), (4, A, 8)], [(A, 2.0)], {2: 0, 4: 8, 9: 8}),
        # also where the storage tells it late.
        ([(1, A, 8), (2, A, -8), (3, A, 8)], [(A, 4.0)], {2: 0, 3: 8, 9: 8}),
        ([(1, A, 8), (2, A, -8), (3, A, 8)], [(A, 4.0), (A, 7.0)], {3: 8, 6: 8, 7: 0}),
        # Told twice counts once.
        ([(1, A, 8), (2, A, -8)], [(A, 2.5)], {2: 0, 3: 0}),
    ],
)
def test_pieces_end_once(
    told: list[Told], deaths: list[tuple[int, float]], after: dict[float, int]
) -> None:
    changes = _changes(told, deaths)
    for time_us, count in after.items():
        assert sum(change for at, change in changes if at <= time_us) == count


def test_what_another_thread_gives_back_is_gone() -> None:
    """The profiler knows nothing of that thread, like of those of gloo."""
    deaths: list[tuple[int, int]] = []
    with StorageTracker("cpu", deaths), CpuAllocations(deaths) as counted:
        counted.mark("start")
        held = [torch.ones(N)]
        counted.mark("there")
        release = threading.Thread(target=held.clear)
        release.start()
        release.join()
        time.sleep(0.002)
        counted.mark("gone")
        kept = torch.ones(2 * N)
        counted.mark("end")
    assert counted.at("there") == 4 * N
    assert counted.at("gone") == 0
    assert counted.at("end") == kept.nbytes
    assert counted.peak("gone", "end") == kept.nbytes
