"""Records and files for tests of several folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from schemas.base import Schema
from schemas.results import (
    BatchShape,
    CollectiveRun,
    Hardware,
    LengthHistogram,
    Parts,
    PredictedRank,
    Prediction,
    Provenance,
    Refinement,
    ShardManifest,
    Topology,
    Unsettled,
)

SHA = "0" * 64
AnySchema = TypeVar("AnySchema", bound=Schema)


def record(schema: type[AnySchema], **fields: Any) -> AnySchema:
    """A record whose other fields are null or, if they must not be null, empty lists and tables."""
    usual: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        if field.is_required() and type(None) in get_args(field.annotation):
            usual[name] = None
        elif field.is_required() and (kind := get_origin(field.annotation)) in (list, dict):
            usual[name] = kind()
    return schema(**(usual | fields))


def topology(world_size: int = 1, **fields: Any) -> Topology:
    """Ranks on the CPU of one host."""
    usual: dict[str, Any] = {
        "device": "cpu",
        "world_size": world_size,
        "local_world_size": world_size,
        "nodes": 1,
        "threads_per_rank": 2,
    }
    return record(Topology, **(usual | fields))


def collective_run(command: str = "") -> CollectiveRun:
    """A measurement of collective operations by two ranks on a CPU."""
    usual = {"status": "ok", "backend": "gloo", "world_size": 2, "nodes": 1, "device": "cpu"}
    return record(CollectiveRun, **usual, command=command)


def provenance(**fields: Any) -> Provenance:
    """A provenance: a small host, and no commit."""
    hardware = Hardware(
        platform="Linux", cpu="cpu", cores=1, logical_cpus=1, memory_bytes=1, cpu_features=[],
        gpus=[], gpu_note="none", allocator="glibc", cuda_allocator=None, affinity="cores 0-1",
    )  # fmt: skip
    usual: dict[str, Any] = {
        "spec_sha256": SHA,
        "command": "run",
        "commit": None,
        "started": "2024-05-06T07:08:09Z",
        "python": "3.11",
        "packages": {},
        "hardware": hardware,
    }
    return Provenance(**(usual | fields))


def prediction(training_bytes: int, kept_bytes: int = 0, **fields: Any) -> Prediction:
    """The prediction for one rank with so much memory, of which so much holds weights."""
    parts = Parts.model_validate(
        dict.fromkeys(Parts.model_fields, 0) | {"weights_bytes": kept_bytes}
    )
    rank = PredictedRank(
        rank=0,
        batch=BatchShape(rows=1, source_tokens=1, target_tokens=1),
        at_peak=parts,
        anatomy=parts,
        training_bytes=training_bytes,
        validation_bytes=0,
    )
    usual: dict[str, Any] = {
        "variant": "single",
        "status": "ok",
        "device": "cpu",
        "parameters": 1,
        "ranks": [rank],
        "seconds": 0.0,
    }
    return record(Prediction, **(usual | fields))


def manifest(**fields: Any) -> ShardManifest:
    """The manifest of a split without shards, with these ``fields`` in place of the usual ones."""
    usual: dict[str, Any] = {
        "corpus": "small",
        "split": "train",
        "source_tokens": 0,
        "target_tokens": 0,
        "skipped_too_long": 0,
        "id_type": "uint16",
        "tokenizer_sha256": SHA,
        "lengths": LengthHistogram(unit="tokens", source={}, target={}),
        "seconds": 1.0,
    }
    return record(ShardManifest, **(usual | fields))


def refinement(*unsettled: Unsettled) -> Refinement:
    """A refinement of 10 minutes that left these comparisons undecided."""
    return Refinement(
        asked_seconds=600.0,
        kept_seconds=30.0,
        ended_at_seconds=565.0,
        stints=[],
        unsettled=list(unsettled),
    )


def write_tree(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes these texts, by path, below ``folder``, and returns the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
