"""Short runs and certificates: results/equivalence/."""

from typing import Literal

from schemas.base import Schema
from schemas.data import Sha256
from schemas.equivalence import AnyEquivalence
from schemas.results.common import Status
from schemas.results.runs import Provenance, Topology


class SeedTrajectory(Schema):
    """One short training, step by step."""

    seed: int
    """Seed of the initial weights and of the order of the batches."""
    initial_sha256: Sha256
    """Hash of the initial weights under their canonical names."""
    losses: list[float]
    """Training loss per target token in nats, all ranks, before the update of each step."""
    grad_norms: list[float | None]
    """Norm of the gradient before clipping; null where it overflowed and the step was skipped."""
    replica_differences: list[float] | None
    """Largest difference of a parameter between rank 0 and any other rank, after each step; null
    where there is one copy of the parameters."""


class Trajectory(Schema):
    """results/equivalence/trajectories/<name>/trajectory.json.

    Beside it, initial.safetensors and final.safetensors hold the weights of the first seed.
    """

    name: str
    """The variant, or reference."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why it is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """What it ran on; null if it is not ok."""
    seeds: list[SeedTrajectory]
    """A training per seed; none if it is not ok."""
    provenance: Provenance
    """Where this comes from."""


CertificateStatus = Literal[
    "equivalent", "not_equivalent", "different", "unsupported", "oom", "diverged", "failed"
]


class Deviation(Schema):
    """The largest difference from the reference in one quantity, and what is allowed."""

    quantity: Literal["loss", "grad_norm", "weights", "replicas", "final_loss"]
    """What is compared."""
    measured: float
    """The difference, relative but for replicas; of final_loss the end of the interval of the mean
    difference that is farther from 0."""
    bound: float
    """Largest difference allowed."""
    where: str
    """The step or tensor that has it."""

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed."""
        return self.measured <= self.bound


class CertificateStep(Schema):
    """One step of the first seed, beside that of the reference."""

    step: int
    """Optimizer step, from 1."""
    loss: float
    """Training loss of the variant."""
    reference_loss: float
    """Training loss of the reference."""
    grad_norm: float | None
    """Gradient norm of the variant."""
    reference_grad_norm: float | None
    """Gradient norm of the reference."""


class Certificate(Schema):
    """results/equivalence/<variant>.json: whether a variant trains the same model."""

    variant: str
    """Name of the variant."""
    equivalence: AnyEquivalence
    """The class of the variant, with its bounds."""
    status: CertificateStatus
    """The verdict, or why there is none."""
    reason: str
    """The verdict in a sentence."""
    reference: str | None
    """The run that it was compared with; null if none is possible."""
    seeds: list[int]
    """Seeds of the compared trainings."""
    deviations: list[Deviation]
    """What was measured; empty where nothing could be compared."""
    left_out: list[str]
    """Tensors that are not compared, because the loss does not depend on them."""
    steps: list[CertificateStep]
    """The course of the first seed."""
    provenance: Provenance | None
    """Where the variant's training comes from; null if there was none."""
