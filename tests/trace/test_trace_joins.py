"""Joins over stretches of rows: what one by one gives, in any order, and with how much memory."""

import tracemalloc

import numpy as np
import pytest

from transformer_core.trace.events import columns
from transformer_core.trace.events.columns import NULL, Columns, Integers
from transformer_core.trace.events.joins import around, first_launches, leaves

_NAMES = ("thread", "t0", "t1", "name")


@pytest.fixture(params=[5, 64, 1 << 15])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(columns, "_BLOCK", request.param)
    return int(request.param)


def nested(seed: int, count: int, ordered: bool) -> Columns:
    """Operators on three threads that lie in each other, touch, or begin at once."""
    random = np.random.default_rng(seed)
    t0 = random.integers(0, 3 * count, count)
    t1 = t0 + random.integers(0, 12, count) * random.integers(0, 4, count)
    order = np.argsort(t0) if ordered else np.arange(count)
    values = (random.integers(0, 3, count), t0[order], t1[order], random.integers(0, 5, count))
    found = Columns(*_NAMES)
    for place in range(0, count, 7):  # packed in parts of other lengths than those of columns
        part = slice(place, place + 7)
        listed = {name: column[part] for name, column in zip(_NAMES, values, strict=True)}
        found.extend(len(values[0][part]), **listed)
    found.replace("t1", found["t1"])
    return found


@pytest.mark.parametrize("ordered", [True, False])
def test_the_innermost_around(block: int, ordered: bool) -> None:
    rows = nested(1, 300, ordered)
    thread, t0, t1, _ = (rows[name] for name in _NAMES)
    random = np.random.default_rng(2)
    times = random.integers(-5, 950, 400)
    threads = np.where(random.random(400) < 0.1, NULL, random.integers(0, 4, 400))

    def innermost(on: int, time: int) -> int:
        inside = np.flatnonzero((thread == on) & (t0 <= time) & (t1 > time)).tolist()
        return max(inside, key=lambda k: (t0[k], -t1[k], k), default=-1)

    wanted = [innermost(*place) for place in zip(threads.tolist(), times.tolist(), strict=True)]
    assert around(rows, threads, times).tolist() == wanted
    assert len(set(wanted)) > 50


@pytest.mark.parametrize("ordered", [True, False])
def test_leaves_have_none_of_their_kind_inside(block: int, ordered: bool) -> None:
    rows = nested(3, 300, ordered)
    thread, t0, t1, name = (rows[column] for column in _NAMES)
    kinds = {0: 10, 1: 10, 2: 11, 3: 12, 4: 12}
    chosen = np.random.default_rng(4).permutation(300)[:200]

    def leaf(k: int) -> bool:
        key = (t0[k], -t1[k], k)
        return kinds[name[k]] != 12 and not any(
            thread[j] == thread[k]
            and kinds[name[j]] == kinds[name[k]]
            and (t0[j], -t1[j], j) > key
            and t0[j] < t1[k]
            for j in range(300)
        )

    found = leaves(rows, chosen, kinds, [10, 11]).tolist()
    assert found == [leaf(k) for k in chosen.tolist()]
    assert 20 < sum(found) < 180


def test_the_first_launch_of_an_id(block: int) -> None:
    random = np.random.default_rng(5)
    launches = Columns("correlation", "thread", "t0")
    ids, t0 = random.integers(0, 80, 300), random.integers(0, 500, 300)
    launches.extend(300, correlation=ids, thread=np.arange(300), t0=t0)
    wanted = np.where(random.random(100) < 0.2, NULL, random.integers(-3, 90, 100))
    thread, time = first_launches(wanted, launches)
    for place, number in enumerate(wanted.tolist()):
        mine = np.flatnonzero(ids == number).tolist()
        first = min(mine, key=lambda k: (t0[k], k), default=None)
        told = (NULL, NULL) if first is None else (first, t0[first])
        assert (thread[place], time[place]) == told


def test_parts_of_columns(block: int) -> None:
    rows = nested(6, 200, True)
    t0, names = rows["t0"], rows["name"]
    places = np.random.default_rng(7).integers(0, 200, 90)
    assert rows.take("t0", places).tolist() == t0[places].tolist()
    assert rows.stretch("t1", 3, 150).tolist() == rows["t1"][3:150].tolist()
    assert rows.distinct("name") == sorted(set(names.tolist()))
    assert rows.places("name", [1, 3]).tolist() == np.flatnonzero((names % 2) == 1).tolist()
    empty = Columns(*_NAMES)
    assert not len(empty.take("t0", places[:0]))
    assert (empty.distinct("name"), empty.places("name", [1]).tolist()) == ([], [])


def joined(operators: int) -> int:
    """Bytes at the peak of joining a thousand launches with so many operators."""
    rows = Columns(*_NAMES)
    t0 = np.arange(operators, dtype=np.int64) * 10
    rows.extend(operators, thread=1, t0=t0, t1=t0 + 8, name=0)
    times: Integers = np.linspace(0, 10 * operators - 3, 1000).astype(np.int64)
    thread = np.ones(1000, np.int64)
    tracemalloc.start()
    try:
        found = around(rows, thread, times)
        chosen = found[found >= 0]
        assert len(chosen) > 500
        assert leaves(rows, chosen, {0: 7}, [7]).all()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_joins_does_not_grow_with_the_operators() -> None:
    one, many = joined(1 << 17), joined(1 << 20)
    # A column alone of the larger would have seven megabytes more.
    assert many - one < 1_000_000
