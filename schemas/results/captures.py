"""Captures: the raw traces of a variant, and how they came about: results/profiles/<variant>/."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.results.common import Elapsed, Few, SignedSeconds, Status
from schemas.results.runs import Provenance, Topology


class DdpTimes(Schema):
    """What DistributedDataParallel itself says of the last reduction of a step."""

    step: StepsOrNone
    """Optimizer step."""
    forward_seconds: Elapsed
    """Time of the forward pass."""
    backward_compute_seconds: Elapsed
    """From the start of backward until the last gradient is ready."""
    communication_seconds: Elapsed
    """From the start of the first bucket's reduction to the end of the last one's."""
    overlap_seconds: SignedSeconds
    """Time of the communication that lies within the computation of backward."""


class RankCapture(Schema):
    """One process of a capture."""

    rank: Few
    """Global rank."""
    files: list[str]
    """Raw files beside this record, the one that the breakdown reads first: a Kineto trace
    (.json.gz) for Perfetto, or an SQLite export (.sqlite) and a report (.nsys-rep) for the
    Nsight Systems GUI."""
    step_seconds: list[Elapsed]
    """Host time of every profiled step; a GPU may lag behind."""
    ddp: list[DdpTimes]
    """DistributedDataParallel's own times of the profiled steps; empty for other strategies."""


class Capture(Schema):
    """results/profiles/<variant>/capture.json: a few profiled steps, in a run of their own."""

    variant: str
    """Name of the variant."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed capture."""
    profiler: Literal["nsys", "torch"] | None
    """Profiler that recorded it; null where none did."""
    profiler_version: str | None
    """Its version; null where none recorded."""
    profiler_reason: str
    """Why this profiler was taken, in a sentence."""
    topology: Topology | None
    """What it ran on; null if it is not ok."""
    warmup_steps: StepsOrNone
    """Steps before the profiled ones."""
    first_step: StepsOrNone
    """First profiled optimizer step."""
    last_step: StepsOrNone
    """Last profiled optimizer step."""
    ranks: list[RankCapture] = Field(default_factory=list)
    """The processes in order of rank; empty if it is not ok."""
    provenance: Provenance
    """Where this comes from."""
