"""Packed columns, and events that are decoded together with their args."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import complete, kineto, on_device

from transformer_core.trace.events import columns as columns_module
from transformer_core.trace.events.columns import NULL, Columns, Packed
from transformer_core.trace.events.process import LeftOut
from transformer_core.trace.readers import kineto_stream
from transformer_core.trace.readers.files import read_files
from transformer_core.trace.readers.kineto_events import EventDecoder

EDGES = [NULL, NULL + 1, -(2**32), -1, 0, 1, 254, 255, 256, 65_535, 2**32, 2**63 - 1]


@given(st.lists(st.sampled_from(EDGES) | st.integers(NULL, 2**63 - 1) | st.integers(0, 300)))
def test_packed_values_come_back(values: list[int]) -> None:
    assert Packed(np.array(values, np.int64)).values().tolist() == values


@given(
    st.lists(st.tuples(*[st.sampled_from(EDGES)] * 2), max_size=40), st.integers(1, 7), st.data()
)
def test_columns_over_many_blocks(rows: list[tuple[int, int]], block: int, data: Any) -> None:
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "_BLOCK", block)
        found = Columns("a", "b", "c")
        half = len(rows) // 2
        for a, b in rows[:half]:
            found.add(a, b, 5)
        rest = np.array(rows[half:], np.int64).reshape(-1, 2)
        found.extend(len(rest), a=rest[:, 0], b=rest[:, 1], c=5)
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
    complete("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
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


def rows(path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool) -> tuple[list[Any], list[str]]:
    with monkeypatch.context() as patch:
        if not typed:
            patch.setattr(EventDecoder, "__call__", lambda self, t: self._one_by_one(t))
        reading = read_files([path])
    return reading.table.to_pylist(), reading.notes


@pytest.mark.parametrize("more", [[], *UNUSUAL])
def test_events_decoded_with_their_args_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Sequence[dict[str, Any]]
) -> None:
    # Many stretches: categories that the first of them brings are known to those behind.
    monkeypatch.setattr(kineto_stream, "_CHUNK", 2000)
    path = kineto(tmp_path / "trace.json", [*EVENTS, *more, *EVENTS[:7] * 9, *more])
    assert rows(path, monkeypatch, typed=True) == rows(path, monkeypatch, typed=False)


def test_usual_events_are_decoded_with_their_args() -> None:
    piece = EventDecoder(LeftOut())(json.dumps(EVENTS).encode())
    assert len(piece) == len(EVENTS)
    assert {name: len(events) for name, events in piece.runs.items()} == {
        "cpu_op": 2,
        "cuda_runtime": 2,
        "user_annotation": 1,
        "python_function": 2,
        "kernel": 1,
        "gpu_memcpy": 1,
        "cpu_instant_event": 1,
    }


def test_reading_imports_what_it_needs(tmp_path: Path) -> None:
    path = kineto(tmp_path / "trace.json", EVENTS)
    program = f"""
import sys
from transformer_core.trace.__main__ import main
assert main([{str(path)!r}, "--output", {str(tmp_path / "breakdown.json")!r}]) == 0
heavy = {{"torch", "pandas", "pyarrow", "scipy", "tqdm", "sqlite3", "concurrent.futures"}}
print(sorted(heavy & set(sys.modules)), "schemas.config.run_spec" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] False"
