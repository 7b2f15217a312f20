"""Profiles of the study in report_builders: two steps, with communication between several ranks.

Two ranks share a step of 100 microseconds; a single one takes twice as long.
"""

from pathlib import Path
from typing import Any

from hostile import write
from traces import break_down, event_table, mark, talk, work

from schemas.results import Breakdown, Repeat
from transformer_core.trace.breakdown.summary import layers, shapes, summarise
from transformer_core.trace.events.arrow import write_events
from transformer_core.trace.events.event_table import rows_of

MICRO = 1000
PRODUCT = {"operator_class": "contraction", "operator": "aten::mm"}
PRODUCT |= {"flops": 4_000_000, "operator_bytes": 100_000, "shapes": "fp32 [50,100] [100,400]"}
PRODUCT |= {"layer": "model/encoder/linear"}
NORM = {"operator_class": "normalization", "flops": 30_000, "operator_bytes": 60_000}
NORM |= {"operator": "aten::native_layer_norm", "layer": "model/encoder/norm"}


def step_rows(rank: int, number: int, ranks: int) -> list[dict[str, Any]]:
    """One step: forward and backward on one stream, an all-reduce half hidden by backward."""
    begin, pace = 250 * MICRO * number, 2 * MICRO // ranks
    usual = {"rank": rank, "device": "cpu", "step": number, "launch_ns": begin}

    def at(place: int) -> int:
        return begin + place * pace

    rows = [
        mark("step", at(0), at(100), rank=rank, step=number),
        mark("forward", at(5), at(30), rank=rank, phase="forward", step=number),
        mark("loss", at(25), at(30), rank=rank, phase="loss", step=number),
        mark("backward", at(30), at(80), rank=rank, phase="backward", step=number),
        mark("model", at(5), at(25), rank=rank, kind="module", layer="model", bytes=4096),
        work("gemm", at(10), at(22), **usual, **PRODUCT, phase="forward"),
        work("norm", at(22), at(28), **usual, **NORM, phase="forward"),
        work("gemm", at(32), at(60), **usual, **PRODUCT, phase="backward"),
        work("adam", at(85), at(90), **usual, operator_class="element_wise", phase="optimizer"),
    ]
    if ranks > 1:
        size = {"bytes": 1 << 20, "group_size": ranks, "phase": "backward", "stream": 20}
        rows.append(talk("all_reduce", at(50), at(70 + 5 * rank), **usual, **size))
    return rows


def write_profile(folder: Path, repeat: Repeat, ranks: int) -> None:
    """breakdown.json and events.parquet of a variant whose runs ended like ``repeat``."""
    ok = repeat.status == "ok"
    table = event_table(
        [
            row
            for rank in range(ranks if ok else 0)
            for number in range(2)
            for row in step_rows(rank, number, ranks)
        ]
    )
    devices, rows = break_down(table), rows_of(table)
    breakdown = Breakdown(
        name=folder.name,
        status=repeat.status,
        reason=repeat.reason,
        source="kineto" if ok else None,
        source_version=None,
        profiler_reason="There is no CUDA device whose kernels Nsight Systems could record.",
        viewer_files=[f"rank-{rank}.pt.trace.json.gz" for rank in range(ranks)] if ok else [],
        devices=devices,
        summary=summarise(devices, [], layers(rows), shapes(rows, 20)),
        notes=["1 of 2 device events have no launch in the trace"] if ok and ranks > 1 else [],
    )
    write_events(folder / "events.parquet", table)
    write(folder / "breakdown.json", breakdown)
