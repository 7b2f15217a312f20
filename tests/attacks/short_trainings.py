"""Certificates of tiny trainings, in this process or in the ranks of two."""

import json
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from schemas.base import merge
from schemas.config.measurement import Bitwise, Different, Statistical, Tolerance
from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.results import Certificate, SeedTrajectory, Trajectory
from tests.training.small_training import small_spec, small_store, small_texts
from transformer_core.certify.bounds import Weights, read_tensors
from transformer_core.certify.judge import certify, different
from transformer_core.certify.short_run import LateSteps
from transformer_core.certify.short_run_worker import record
from transformer_core.machine.provenance import collect
from transformer_core.parallel.topology import Process

TINY: dict[str, Any] = {
    "model": {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0},
    "training": {"schedule": {"kind": "constant", "peak": 3e-3}},
}
PLAIN_MODEL: dict[str, Any] = {
    "model": {"attention": {"kind": "reference"}, "qkv": {"kind": "separate"}}
}
PLAIN_TRAINING: dict[str, Any] = {"training": {"optimizer": {"kind": "adamw", "fused": False}}}
Recorded = tuple[RunSpec, list[SeedTrajectory], Weights]


def spec_of(change: dict[str, Any], base: dict[str, Any] | None = None) -> RunSpec:
    """The tiny study with the changes ``base`` and ``change``."""
    return small_spec(**merge(merge(TINY, base or {}), change))


def recorded(
    spec: RunSpec,
    seeds: int = 1,
    dropout: float = 0.0,
    checked: bool = True,
    late: dict[str, Any] | None = None,
) -> Recorded:
    """The trainings of ``spec`` in this process or rank, with the initial and final weights."""
    joined = dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    process = Process(rank, size, rank, size, torch.device("cpu"))
    make = small_texts if isinstance(spec.task, LanguageModel) else small_store
    stores = (make(), make(9, seed=1))
    steps = None if late is None else LateSteps.model_validate(late)
    found = []
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        if joined:
            dist.broadcast_object_list(shared)
        folder = Path(shared[0])
        for number in range(seeds):
            training = spec.training.model_copy(update={"seed": spec.training.seed + number})
            seeded = spec.model_copy(update={"training": training})
            given = (seeded, process, stores, folder, number == 0)
            found.append(record(*given, dropout, checked, steps).trajectory)
        if joined:
            dist.barrier()
        final, initial = (
            read_tensors(folder / f"{end}.safetensors") for end in ("final", "initial")
        )
        if joined:
            dist.barrier()
    return spec, found, Weights(run=final, reference=final, initial=initial)


@cache
def reference(base: str = "{}", seeds: int = 1, dropout: float = 0.0) -> Recorded:
    """The reference of the tiny study, with the changes ``base`` (JSON) to the study itself."""
    study = json.loads(base)
    plain: dict[str, Any] = {}
    if study.get("model", {}).get("kind", "transformer") in ("transformer", "decoder_only"):
        plain |= PLAIN_MODEL
    if study.get("training", {}).get("optimizer", {}).get("kind", "adamw") == "adamw":
        plain |= PLAIN_TRAINING
    return recorded(spec_of(plain, study), seeds, dropout, checked=False)


def nearest(certificate: Certificate) -> tuple[str, float]:
    """The quantity that is nearest to its bound, and its share of the bound."""
    shares = [
        (d.quantity, d.measured / d.bound if d.bound else 0.0) for d in certificate.deviations
    ]
    return max(shares, key=lambda each: each[1])


def certificate(
    equivalence: Bitwise | Tolerance | Statistical, run: Recorded, against: Recorded
) -> Certificate:
    weights = Weights(run=run[2].run, reference=against[2].run, initial=against[2].initial)
    return certify(equivalence, _trajectory("run", run), _trajectory("reference", against), weights)


def own_certificate(run: Recorded) -> Certificate:
    """The certificate of a variant that trains another model by design."""
    return different("run", Different(kind="different"), _trajectory("run", run))


def _trajectory(name: str, run: Recorded) -> Trajectory:
    spec, seeds, _ = run
    ends: dict[str, Any] = {"status": "ok", "reason": None, "traceback": None, "topology": None}
    return Trajectory(name=name, seeds=seeds, provenance=_provenance(spec), **ends)


@cache
def _nowhere() -> Any:
    return collect(small_spec(), "run", datetime.now(UTC))


def _provenance(spec: RunSpec) -> Any:
    return _nowhere().model_copy(update={"spec_sha256": spec.digest()})
