"""Projections and the error of the emulated link, for the report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.results import (
    ComputeRecord,
    ComputeTimes,
    LinkTrial,
    Provenance,
    ReadyGradient,
    Status,
    VariantResult,
)
from tests.records import record
from transformer_core.decide import link_error
from transformer_core.decide.link_error import measured_link
from transformer_core.decide.projection import project

MIB = 2**20
LAYERS = 4


def compute_times(
    micro_batches: int, status: Status, reason: str | None, provenance: Provenance
) -> ComputeTimes:
    """Half a second of backward that fills four layers of 1 MiB, unless it is not ok."""
    gradients = [
        ReadyGradient(bytes=MIB, seconds=0.5 / micro_batches * (n + 1) / LAYERS, layer=n)
        for n in range(LAYERS)
    ]
    measured = {
        "forward_seconds": 0.25 / micro_batches,
        "backward_seconds": 0.5 / micro_batches,
        "update_seconds": 0.05,
        "other_seconds": 0.0,
        "gradients": gradients,
        "source_tokens": 1000.0 / micro_batches,
        "target_tokens": 1000.0 / micro_batches,
        "vocabulary": 2000,
    }
    return record(
        ComputeTimes,
        variant="ddp" if micro_batches == 1 else "accum4_sync",
        status=status,
        reason=reason,
        micro_batches=micro_batches,
        provenance=provenance,
        **(measured if status == "ok" else {}),
    )


def trials(status: Status, text: str) -> list[LinkTrial]:
    """Two configurations at two bandwidths, of which the last is not made for the reason
    ``text``; with another status than ok, all of them."""
    errors = {("ddp", 1e8): -0.02, ("small_buckets", 1e8): 0.04}
    errors |= {("ddp", 1e9): 0.07, ("small_buckets", 1e9): 0.01}
    kept = 3 if status == "ok" else 0
    found = []
    for (name, bandwidth), error in errors.items():
        ended: dict[str, Any] = {"status": "unsupported", "reason": text}
        if len(found) < kept:
            seconds = {"real_seconds": 0.5, "emulated_seconds": 0.5 * (1 + error)}
            ended = {"status": "ok", "error": error} | seconds
        found.append(record(LinkTrial, name=name, bandwidth=bandwidth, **ended))
    return found


def write_scaling(
    folder: Path, study: Study, specs: Mapping[str, RunSpec], provenance: Provenance, text: str
) -> None:
    """projection.json by its own job, and links/error.json, of the results in ``folder``."""
    distributed = {name: spec for name, spec in specs.items() if spec.world_size > 1}
    results = {
        name: VariantResult.model_validate_json(
            (folder / "runs" / name / "metrics.json").read_text()
        )
        for name in distributed
    }
    status: Status = "ok" if any(r.status == "ok" for r in results.values()) else "unsupported"
    reason = None if status == "ok" else text
    assert study.projection is not None
    projection = project(
        ComputeRecord(times=[compute_times(n, status, reason, provenance) for n in (1, 4)]),
        distributed,
        results,
        measured_link(folder / "machine" / "collectives.parquet"),
        study.projection,
    )
    (folder / "projection").mkdir()
    (folder / "projection" / "projection.json").write_text(projection.model_dump_json())
    (folder / "links").mkdir()
    found = link_error.summarise(trials(status, text))
    (folder / "links" / "error.json").write_text(found.model_dump_json())
