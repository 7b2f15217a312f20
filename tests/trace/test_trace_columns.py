"""Columns, joins and intervals, against the same computed row by row."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traces import complete, event_table, kineto, launch, on_device, table_in, work

from transformer_core.common.tables import read_table
from transformer_core.trace.breakdown.devices import partition
from transformer_core.trace.events import arrow, columns
from transformer_core.trace.events.arrow import events_of, table_of, write_events
from transformer_core.trace.events.columns import NULL, Columns, around, leaves
from transformer_core.trace.events.event_table import TEXTS, Events, joined, rows_of
from transformer_core.trace.events.intervals import Innermost, union
from transformer_core.trace.readers import kineto_events
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.readers.kineto_events import EventDecoder

some = settings(deadline=None, max_examples=50)
EDGES = [NULL, NULL + 1, -(2**32), -129, -128, 0, 127, 128, 2**15, 2**31 - 1, 2**31, 2**63 - 1]


@some
@given(
    st.lists(st.tuples(*[st.sampled_from(EDGES)] * 2), max_size=40), st.integers(1, 7), st.data()
)
def test_columns_over_many_blocks(rows, block, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    mask = np.array(mask, np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_BLOCK", block)
        found = Columns("a", "b", "c")
        half = len(rows) // 2
        for a, b in rows[:half]:
            found.add(a, b, 5)
        rest = np.array(rows[half:], np.int64).reshape(-1, 2)
        found.extend(a=rest[:, 0], b=rest[:, 1], c=5)
        assert found["a"].tolist() == [a for a, _ in rows]
        found.replace("b", -np.arange(len(rows)))
        found.keep(mask)
    kept = np.flatnonzero(mask)
    assert len(found) == len(kept)
    assert found["a"].tolist() == [rows[k][0] for k in kept.tolist()]
    assert found["b"].tolist() == (-kept).tolist()
    assert found["c"].tolist() == [5] * len(kept)


SHAPES: dict[str, Any] = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float"] * 2}
EVENTS = [
    complete("cpu_op", "aten::mm", 0, 9, **SHAPES),
    complete("cpu_op", "aten::add", 9, 1),
    launch(1, 1),
    complete("cuda_runtime", "cudaStreamSynchronize", 3, 4, correlation=2),
    complete("user_annotation", "ProfilerStep#1", 0, 50),
    complete("python_function", "nn.Module: Linear_0", 0, 20),
    complete("python_function", "forward", 0, 20),
    on_device("kernel", "gemm", 20, 10, 1),
    on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 31, 5, 3, bytes=128),
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 2, "pid": 1, "tid": 1,
     "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 512}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "ts": 1, "pid": 1, "tid": 1},
]  # fmt: skip
HUGE = {"Collective name": "allreduce", "Group size": 2**63 - 1, "In msg nelems": 10**17}
HUGE |= {"dtype": "Double", "Out msg nelems": 2**62}
UNUSUAL: list[list[dict[str, Any]]] = [
    [],
    [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}],
    [{"ph": "B", "cat": "cpu_op", "name": "x", "ts": 1, "pid": 1, "tid": 1}],
    [{"ph": "E", "cat": "new", "name": "x", "ts": 1, "pid": 1, "tid": 1}],
    [EVENTS[9] | {"cat": "elsewhere"}],
    [EVENTS[9] | {"cat": "cpu_op"}],
    [EVENTS[0] | {"cat": "Operator"}, EVENTS[7] | {"cat": "Kernel"}],
    [EVENTS[7] | {"args": {"device": "zero"}}],
    [EVENTS[7] | {"ts": 1700000000000000.125}],
    [EVENTS[0] | {"ph": "X", "cat": f"category {k}"} for k in range(80)],
    [complete("cpu_op", "record_param_comms", 1, 1, **{"Collective name": "allreduce"})],
    [complete("cpu_op", "record_param_comms", 1, 1, **{"Collective name": 7})],
    [EVENTS[7] | {"args": None}, EVENTS[0] | {"args": None}],
    [complete("cpu_op", "record_param_comms", 1, 1, **HUGE)],
]


@pytest.mark.parametrize("more", UNUSUAL)
def test_events_decoded_with_their_args_are_the_same(tmp_path, monkeypatch, more):
    # Many pieces: a category that appears in the first piece is known in later ones.
    monkeypatch.setattr(kineto_events, "_CHUNK", 2000)
    path = kineto(tmp_path / "trace.json", [*EVENTS, *more, *EVENTS[:7] * 9, *more])
    typed, usual = read_files([path]), table_in(path)
    monkeypatch.setattr(EventDecoder, "__call__", lambda self, text: self._one_by_one(text))
    single = read_files([path])
    assert usual.to_pylist() == table_in(path).to_pylist()
    assert typed.notes == single.notes


def test_reading_imports_what_it_needs(tmp_path):
    """Only an event table needs pyarrow, and nothing needs pandas."""
    path = kineto(tmp_path / "trace.json", EVENTS)
    words = [str(path), "--output", str(tmp_path / "breakdown.json")]
    program = f"""
import sys
from transformer_core.trace.__main__ import main
heavy = {{"torch", "pandas", "pyarrow", "scipy", "tqdm", "sqlite3", "concurrent.futures"}}
heavy.add("schemas.config.run_spec")
assert main({words}) == 0
print(sorted(heavy & set(sys.modules)))
assert main([*{words}, "--events", {str(tmp_path / "events.parquet")!r}]) == 0
print("pandas" in sys.modules)
"""
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert [line for line in said.splitlines() if line in ("[]", "False")] == ["[]", "False"]


def test_a_table_is_written_in_parts(tmp_path, monkeypatch):
    events = event_table([work(f"k{n % 5}", 10 * n, 10 * n + n) for n in range(50)])
    rows = table_of(events)
    write_events(tmp_path / "whole.parquet", events)
    monkeypatch.setattr(arrow, "_ROWS", 16)
    write_events(tmp_path / "parts.parquet", events)
    write_events(tmp_path / "none.parquet", Events())
    whole, parts = (read_table(tmp_path / f"{name}.parquet") for name in ("whole", "parts"))
    assert parts.column("name").num_chunks > 1
    assert parts.to_pylist() == whole.to_pylist() == rows.to_pylist()
    assert read_table(tmp_path / "none.parquet").schema == rows.schema
    # In each part, the texts are numbered from 0.
    assert list(rows_of(events_of(parts))["name"]) == [row["name"] for row in rows.to_pylist()]


def test_a_text_that_several_ranks_list_is_written_once(tmp_path):
    """Otherwise Arrow leaves unset memory in the file, and no two files are the same."""
    ranks = [event_table([work(f"k{n % 5}", n, n + 1) for n in range(50)]) for _ in range(2)]
    events = joined(ranks)
    assert len(events.texts) == 2 * len(ranks[0].texts)
    write_events(tmp_path / "events.parquet", events)
    written = pq.ParquetFile(tmp_path / "events.parquet").metadata.row_group(0)
    columns = [written.column(k) for k in range(written.num_columns)]
    texts = {c.path_in_schema: c.encodings for c in columns if c.path_in_schema in TEXTS}
    assert texts.keys() == TEXTS
    assert all("RLE_DICTIONARY" in encodings for encodings in texts.values()), texts
    known = read_table(tmp_path / "events.parquet")["name"].chunk(0).dictionary.to_pylist()
    assert sorted(known) == [f"k{n}" for n in range(5)]


_NAMES = ("thread", "t0", "t1", "name")


def nested(seed: int, count: int, ordered: bool) -> Columns:
    """Operators on three threads that nest, touch, or begin at the same time."""
    random = np.random.default_rng(seed)
    t0 = random.integers(0, 3 * count, count)
    t1 = t0 + random.integers(0, 12, count) * random.integers(0, 4, count)
    order = np.argsort(t0) if ordered else np.arange(count)
    values = (random.integers(0, 3, count), t0[order], t1[order], random.integers(0, 5, count))
    found = Columns(*_NAMES)
    found.extend(**dict(zip(_NAMES, values, strict=True)))
    return found


@pytest.mark.parametrize("ordered", [True, False])
def test_the_innermost_operator_around_a_time(ordered):
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
def test_leaves_contain_no_operator_of_their_kind(ordered):
    rows = nested(3, 300, ordered)
    thread, t0, t1, name = (rows[column] for column in _NAMES)
    kinds = {0: 10, 1: 10, 2: 11, 3: 12, 4: 12}

    def leaf(k: int) -> bool:
        key = (t0[k], -t1[k], k)
        return kinds[name[k]] != 12 and not any(
            thread[j] == thread[k]
            and kinds[name[j]] == kinds[name[k]]
            and (t0[j], -t1[j], j) > key
            and t0[j] < t1[k]
            for j in range(300)
        )

    found = leaves(rows, np.array([kinds[n] for n in name]), [10, 11]).tolist()
    assert found == [leaf(k) for k in range(300)]
    assert 30 < sum(found) < 270


END = 60
moments = st.integers(-5, END + 5)
intervals = st.lists(st.tuples(moments, moments).map(sorted).map(tuple), max_size=12)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    """The set of nanoseconds that the intervals cover."""
    return {moment for t0, t1 in pairs for moment in range(t0, t1)}


def union_of_pairs(pairs: list[tuple[int, int]]):
    t0, t1 = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    return union(t0, t1)


TOUCHING = [(0, 10), (10, 20)]
NESTED = [(0, 30), (5, 10), (5, 30)]
EMPTY = [(7, 7), (7, 7)]
STRADDLING = [(-5, 3), (55, 65)]


@some
@given(intervals)
@example(TOUCHING)
@example(NESTED)
@example(EMPTY)
@example(STRADDLING)
def test_a_union_covers_what_its_intervals_cover(pairs):
    found, moments, window = union_of_pairs(pairs), covered(pairs), set(range(END))
    assert covered(list(zip(found.t0.tolist(), found.t1.tolist(), strict=True))) == moments
    assert found.length == len(moments)
    assert (found.t0[1:] > found.t1[:-1]).all()
    assert found.clip(0, END).length == len(moments & window)
    assert found.gaps(0, END).length == len(window - moments)


@some
@given(st.lists(intervals, min_size=4, max_size=4))
@example([TOUCHING, NESTED, EMPTY, STRADDLING])
@example([[], [], [], []])
def test_the_partition_sums_to_the_window(layers):
    found = partition([union_of_pairs(pairs) for pairs in layers], 0, END)
    window = set(range(END))
    compute, communication, copies, graphs = (covered(pairs) & window for pairs in layers)
    assert found.compute_ns == len(compute)
    assert found.exposed_communication_ns == len(communication - compute)
    assert found.exposed_copies_ns == len(copies - communication - compute)
    assert found.exposed_graphs_ns == len(graphs - copies - communication - compute)
    assert found.overlap_ns == len(compute & communication)
    assert found.idle_ns == len(window - compute - communication - copies - graphs)
    assert found.window_ns == found.busy_ns + found.idle_ns == END


@some
@given(intervals)
@example(NESTED)
@example(TOUCHING)
def test_every_moment_has_one_owner(pairs):
    t0, t1 = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    cut = Innermost(t0, t1)
    begins, ends, _ = cut.stretches
    assert int((ends - begins).sum()) == len(covered(pairs))
    assert (begins[1:] >= ends[:-1]).all()
    times = np.arange(-5, END + 5)
    for time, owner in zip(times.tolist(), cut.at(times).tolist(), strict=True):
        around = [place for place, (a, b) in enumerate(pairs) if a <= time < b]
        assert (owner in around) if around else owner == -1
        # The owner began last, and of those that began with it, ended first.
        if around:
            assert pairs[owner][0] == max(pairs[place][0] for place in around)
