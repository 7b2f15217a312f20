"""The operators of a training step by class, beside the time their work would take at the rates
measured on the same machine, with counts of calls, FLOPs and bytes."""

import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from transformer_core.trace.events.operators import (
    CONTRACTION,
    Work,
    element_bytes,
    format_of,
    operator_class,
    work_of,
)

_MOVES = ("aten::copy_", "aten::index_select", "aten::cat", "aten::fill_", "aten::zero_")
"""Operators that only move data: the bytes of their inputs, and of the result where it is new."""


def profiled(steps: Callable[[], None], count: int) -> list[dict[str, Any]]:
    """Calls, seconds, FLOPs and bytes per step of each operator, of ``count`` steps that ``steps``
    does; what an operator calls is not its own."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        steps()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event, own in _own_times(events):
        arguments = event.get("args", {})
        kinds = arguments.get("Input type", [])
        form = next((f for kind in kinds if (f := format_of(kind))), "")
        entry = sums[event["name"], form]
        work = _work(event["name"], arguments.get("Input Dims", []), kinds)
        entry["calls"] += 1
        entry["seconds"] += own / 1e6
        entry["flops"] += work.flops or 0
        entry["bytes"] += work.bytes or 0
    return [
        {"operator": name, "format": form, "class": operator_class(name)}
        | {key: value / count for key, value in entry.items()}
        for (name, form), entry in sums.items()
    ]


def _work(name: str, dims: list[Any], kinds: list[str]) -> Work:
    shapes = [d if all(isinstance(x, int) for x in d) else [] for d in dims]
    if name == "aten::linear":
        return Work(0, 0)  # it calls the product, which is counted
    if name not in _MOVES:
        return work_of(name, shapes, kinds)
    moved = [
        math.prod(shape) * (element_bytes(kind) or 0)
        for shape, kind in zip(shapes, kinds, strict=False)
        if shape
    ]
    return Work(0, sum(moved) * (1 if name in ("aten::copy_", "aten::fill_") else 2))


def _own_times(events: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each operator with its time in microseconds, less that of the operators that it calls."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            threads[event["tid"]].append(event)
    for own in threads.values():
        inner: dict[int, float] = defaultdict(float)
        stack: list[dict[str, Any]] = []
        for event in sorted(own, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if stack:
                inner[id(stack[-1])] += event["dur"]
            stack.append(event)
        for event in own:
            yield event, max(0.0, event["dur"] - inner[id(event)])


def copy_rate(elements: int = 2**26) -> float:
    """Bytes/s that a copy reads and writes."""
    a, b = torch.ones(elements), torch.empty(elements)
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        b.copy_(a)
        best = min(best, time.perf_counter() - began)
    return 2 * a.nbytes / best


def against_limit(
    operators: list[dict[str, Any]], step_seconds: float, rates: dict[str, float], copies: float
) -> dict[str, Any]:
    """The step by class of operators: seconds, as a share of those of an unprofiled step, beside
    those that FLOPs at the matrix ``rates`` (by format) and bytes at that of ``copies`` take."""
    total = sum(row["seconds"] for row in operators)
    classes: dict[str, dict[str, float]] = {}
    for row in operators:
        entry = classes.setdefault(
            row["class"], dict.fromkeys(("calls", "seconds", "flops", "bytes", "limit"), 0.0)
        )
        for key in ("calls", "flops", "bytes"):
            entry[key] += row[key]
        entry["seconds"] += row["seconds"] / total * step_seconds
        product = row["class"] == CONTRACTION and row["format"] in rates
        rate = rates.get(row["format"], math.inf) if product else math.inf
        entry["limit"] += row["flops"] / rate if product else row["bytes"] / copies
    return {
        "step_seconds": step_seconds,
        "limit_seconds": sum(entry["limit"] for entry in classes.values()),
        "matrix_rates": rates,
        "copy_rate": copies,
        "classes": classes,
        "operators": sorted(operators, key=lambda row: -row["seconds"])[:40],
    }


def table(found: dict[str, Any]) -> str:
    """The classes as a table in Markdown."""
    lines = [
        "| class | calls | ms | GFLOP | GB | ms at the limit |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in sorted(found["classes"].items(), key=lambda item: -item[1]["seconds"]):
        lines.append(
            f"| {name} | {row['calls']:,.0f} | {row['seconds'] * 1e3:.0f} "
            f"| {row['flops'] / 1e9:.1f} | {row['bytes'] / 1e9:.2f} | {row['limit'] * 1e3:.0f} |"
        )
    lines.append(
        f"| step | | {found['step_seconds'] * 1e3:.0f} | | | {found['limit_seconds'] * 1e3:.0f} |"
    )
    return "\n".join(lines)
