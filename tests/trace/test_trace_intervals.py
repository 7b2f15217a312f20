"""Intervals: unions and partitions against a count of single nanoseconds."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_core.trace.breakdown.devices import partition
from transformer_core.trace.events.intervals import exposed, innermost, union

END = 60
moments = st.integers(-5, END + 5)
intervals = st.lists(st.tuples(moments, moments).map(sorted).map(tuple), max_size=12)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    """The nanoseconds that intervals cover, one by one."""
    return {moment for t0, t1 in pairs for moment in range(t0, t1)}


def union_of_pairs(pairs: list[tuple[int, int]]):  # type: ignore[no-untyped-def]
    t0, t1 = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    return union(t0, t1)


TOUCHING = [(0, 10), (10, 20)]
NESTED = [(0, 30), (5, 10), (5, 30)]
EMPTY = [(7, 7), (7, 7)]
STRADDLING = [(-5, 3), (55, 65)]


@settings(deadline=None)
@given(intervals)
@example(TOUCHING)
@example(NESTED)
@example(EMPTY)
@example(STRADDLING)
def test_a_union_covers_what_its_intervals_cover(pairs: list[tuple[int, int]]) -> None:
    found = union_of_pairs(pairs)
    assert covered(list(zip(found.t0.tolist(), found.t1.tolist(), strict=True))) == covered(pairs)
    assert found.length == len(covered(pairs))
    assert (found.t0[1:] > found.t1[:-1]).all()


@settings(deadline=None)
@given(intervals)
@example(STRADDLING)
def test_clip_and_gaps_divide_a_window(pairs: list[tuple[int, int]]) -> None:
    found = union_of_pairs(pairs)
    window = set(range(END))
    assert found.clip(0, END).length == len(covered(pairs) & window)
    assert found.gaps(0, END).length == len(window - covered(pairs))


@settings(deadline=None)
@given(st.lists(intervals, min_size=4, max_size=4))
@example([TOUCHING, NESTED, EMPTY, STRADDLING])
@example([[], [], [], []])
def test_the_partition_sums_to_the_window(layers: list[list[tuple[int, int]]]) -> None:
    found = partition([union_of_pairs(pairs) for pairs in layers], 0, END)
    window = set(range(END))
    compute, communication, copies, graphs = (covered(pairs) & window for pairs in layers)
    assert found.compute_ns == len(compute)
    assert found.exposed_communication_ns == len(communication - compute)
    assert found.exposed_copies_ns == len(copies - communication - compute)
    assert found.exposed_graphs_ns == len(graphs - copies - communication - compute)
    assert found.overlap_ns == len(compute & communication)
    assert found.idle_ns == len(window - compute - communication - copies - graphs)
    parts = (
        found.compute_ns,
        found.exposed_communication_ns,
        found.exposed_copies_ns,
        found.exposed_graphs_ns,
        found.idle_ns,
    )
    assert sum(part or 0 for part in parts) == found.window_ns == END
    assert found.busy_ns + found.idle_ns == END


@settings(deadline=None)
@given(st.lists(intervals, min_size=1, max_size=4))
def test_exposed_parts_sum_to_the_union(layers: list[list[tuple[int, int]]]) -> None:
    parts = exposed([union_of_pairs(pairs) for pairs in layers])
    assert min(parts) >= 0
    assert sum(parts) == len(covered([pair for pairs in layers for pair in pairs]))


@settings(deadline=None)
@given(intervals)
@example(NESTED)
@example(TOUCHING)
def test_every_moment_has_one_owner(pairs: list[tuple[int, int]]) -> None:
    t0, t1 = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    cut = innermost(t0, t1)
    assert int((cut.t1 - cut.t0).sum()) == len(covered(pairs))
    assert (cut.t0[1:] >= cut.t1[:-1]).all()
    times = np.arange(-5, END + 5)
    for time, owner in zip(times.tolist(), cut.at(times).tolist(), strict=True):
        around = [place for place, (a, b) in enumerate(pairs) if a <= time < b]
        assert (owner in around) if around else owner == -1
        # The owner began last, and of those that began with it, ended first.
        if around:
            assert pairs[owner][0] == max(pairs[place][0] for place in around)


def test_self_time_excludes_the_operators_inside() -> None:
    cut = innermost(np.array([0, 10, 12, 40]), np.array([30, 20, 15, 50]))
    found = list(zip(cut.t0.tolist(), cut.t1.tolist(), cut.owner.tolist(), strict=True))
    assert found == [(0, 10, 0), (10, 12, 1), (12, 15, 2), (15, 20, 1), (20, 30, 0), (40, 50, 3)]
    assert cut.parent.tolist() == [-1, 0, 1, -1]


def test_what_touches_does_not_contain() -> None:
    assert innermost(np.array([0, 10, 10]), np.array([10, 20, 12])).parent.tolist() == [-1, -1, 1]


@pytest.mark.parametrize("count", [0, 1])
def test_few_intervals(count: int) -> None:
    t0, t1 = np.zeros(count, np.int64), np.full(count, 4, np.int64)
    assert union(t0, t1).length == 4 * count
    assert innermost(t0, t1).at(np.array([2])).tolist() == [count - 1]
