"""Projections and the error of the emulated link, for the report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostile import EVIL, write

from schemas.config.measurement import Projecting
from schemas.config.run_spec import RunSpec
from schemas.results import (
    ComputeRecord,
    ComputeTimes,
    LinkTrial,
    ReadyGradient,
    Status,
    VariantResult,
)
from tests.records import provenance, record
from transformer_core.decide import link_error
from transformer_core.decide.link_error import measured_link
from transformer_core.decide.projection import project

MIB = 2**20
LAYERS = 4


def compute_times(micro_batches: int, status: Status) -> ComputeTimes:
    """Half a second of backward that fills four layers of 1 MiB, unless it is not ok."""
    tokens, backward = 1000.0 / micro_batches, 0.5 / micro_batches
    gradients = [
        ReadyGradient(bytes=MIB, seconds=backward * (n + 1) / LAYERS, layer=n)
        for n in range(LAYERS)
    ]
    measured = {"forward_seconds": backward / 2, "backward_seconds": backward}
    measured |= {"update_seconds": 0.05, "other_seconds": 0.0, "gradients": gradients}
    measured |= {"source_tokens": tokens, "target_tokens": tokens, "vocabulary": 2000}
    variant = "ddp" if micro_batches == 1 else "accum4_sync"
    ended = measured if status == "ok" else {"reason": EVIL}
    ended |= {"status": status, "provenance": provenance()}
    return record(ComputeTimes, variant=variant, micro_batches=micro_batches, **ended)


def trials(status: Status) -> list[LinkTrial]:
    """Two configurations at two bandwidths; the last one, or all if the status is not ok, did not
    run."""
    errors = {("ddp", 1e8): -0.02, ("small_buckets", 1e8): 0.04}
    errors |= {("ddp", 1e9): 0.07, ("small_buckets", 1e9): 0.01}
    kept = 3 if status == "ok" else 0
    found = []
    for (name, bandwidth), error in errors.items():
        ended: dict[str, Any] = {"status": "unsupported", "reason": EVIL}
        if len(found) < kept:
            seconds = {"real_seconds": 0.5, "emulated_seconds": 0.5 * (1 + error)}
            ended = {"status": "ok", "error": error} | seconds
        found.append(record(LinkTrial, name=name, bandwidth=bandwidth, **ended))
    return found


def write_scaling(
    folder: Path,
    specs: Mapping[str, RunSpec],
    results: Mapping[str, VariantResult],
) -> None:
    """projection.json by its own job, and links/error.json, of the results in ``folder``."""
    distributed = {name: spec for name, spec in specs.items() if spec.world_size > 1}
    ok = any(results[name].status == "ok" for name in distributed)
    status: Status = "ok" if ok else "unsupported"
    projection = project(
        ComputeRecord(times=[compute_times(n, status) for n in (1, 4)]),
        distributed,
        {name: results[name] for name in distributed},
        measured_link(folder / "machine" / "collectives.parquet"),
        Projecting(),
    )
    write(folder / "projection/projection.json", projection)
    write(folder / "links/error.json", link_error.summarise(trials(status)))
