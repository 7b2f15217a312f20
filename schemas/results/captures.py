"""Captures: the raw traces of a variant, and how they were recorded:
results/profiles/<variant>/."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.results.common import Elapsed, Few, SignedSeconds, Status
from schemas.results.runs import Provenance, Topology


class DdpTimes(Schema):
    """DistributedDataParallel's own timings of the last reduction of a step."""

    step: StepsOrNone
    """Optimizer step."""
    forward_seconds: Elapsed
    """Time of the forward pass."""
    backward_compute_seconds: Elapsed
    """From the start of backward until the last gradient is ready."""
    communication_seconds: Elapsed
    """From the start of the first bucket's reduction to the end of the last one's."""
    overlap_seconds: SignedSeconds
    """Communication time that overlaps the backward computation."""


class RankCapture(Schema):
    """One process of a capture."""

    rank: Few
    """Global rank."""
    files: list[str]
    """Raw files beside this record, starting with the one that the breakdown reads: a Kineto
    trace (.json.gz) for Perfetto, or an SQLite export (.sqlite) and a report (.nsys-rep) for the
    Nsight Systems GUI."""
    step_seconds: list[Elapsed]
    """Host time of every profiled step; a GPU may lag behind."""
    ddp: list[DdpTimes]
    """DistributedDataParallel's own timings of the profiled steps; empty for other strategies."""


class Capture(Schema):
    """results/profiles/<variant>/capture.json: a few profiled steps, in a separate run."""

    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed capture."""
    profiler: Literal["nsys", "torch"] | None
    """The profiler used; null if none recorded anything."""
    profiler_version: str | None
    """Version of the profiler; null if none recorded anything."""
    profiler_reason: str
    """Why this profiler was chosen, in a sentence."""
    topology: Topology | None
    """Devices and processes of the run; null if the status is not ok."""
    warmup_steps: StepsOrNone
    """Steps before the profiled ones."""
    first_step: StepsOrNone
    """First profiled optimizer step."""
    last_step: StepsOrNone
    """Last profiled optimizer step."""
    ranks: list[RankCapture] = Field(default_factory=list)
    """The processes in rank order; empty if the status is not ok."""
    provenance: Provenance
    """Where this record comes from."""
