"""Short runs and certificates: results/equivalence/."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, Seed, StepsOrNone
from schemas.config.corpus import Sha256
from schemas.config.equivalence import AnyEquivalence
from schemas.results.checks import Checks
from schemas.results.common import (
    Extreme,
    Loss,
    Magnitude,
    Many,
    Measured,
    Proportion,
    Status,
)
from schemas.results.kernels import StepKernels
from schemas.results.runs import Provenance, Topology


class Agreement(Schema):
    """In how many elements two masks are alike."""

    same: Many
    """Elements kept by both, or dropped by both."""
    of: Many
    """Elements compared."""


class DropoutPlace(Schema):
    """One place where activations are dropped, as seen in what the model makes of known inputs."""

    place: str
    """What is dropped: embeddings, attention weights, units, or the output of a sub-layer."""
    dropped: Many
    """Elements that were dropped in training, of two passes."""
    of: Many
    """Elements that were seen."""
    factor: Measured | None
    """By what the kept elements are multiplied; null where it is not seen."""
    dropped_in_evaluation: Many
    """Elements that were dropped in an evaluation."""
    steps: Agreement
    """Between two passes, one after the other."""
    rows: Agreement
    """Between the sentences of a batch."""
    layers: Agreement | None
    """Between this place and the last one of the same shape, from the same random state; null for
    the first one."""
    ranks: Agreement | None
    """Between two ranks; null in one process."""
    tokens: Agreement | None = None
    """Between the tokens of a sentence; null where one is seen."""
    elements: Agreement | None = None
    """Between the elements of a token, or the heads of its attention weights; null where there is
    one."""


class DropoutMoments(Schema):
    """What dropout does to loss and gradient: draw after draw at one batch and the same weights.

    A batch is a few copies of the same pairs, divided among ranks and micro-batches, each of which
    draws masks of its own.
    """

    losses: list[Loss]
    """Loss per target token in nats of every copy at every draw."""
    grad_norms: list[Magnitude]
    """Norm of the gradient of the whole batch at every draw; those that overflowed are left out,
    and all of them where messages return later what they leave out."""
    slope: Measured | None
    """How much the loss changed along its gradient at equal masks, over what the gradient says:
    1 where it is the gradient of this loss; null where the gradient overflowed."""


class SeedTrajectory(Schema):
    """One short training, step by step."""

    seed: Seed
    """Seed of the initial weights and of the order of the batches."""
    initial_sha256: Sha256
    """Hash of the initial weights under their canonical names."""
    losses: list[Loss]
    """Training loss per target token in nats, all ranks, before the update of each step."""
    grad_norms: list[Magnitude | None]
    """Norm of the gradient before clipping; null where it overflowed and the step was skipped."""
    replica_differences: list[Magnitude] | None
    """Largest difference of a parameter between rank 0 and any other rank, after each step; null
    where there is one copy of the parameters."""
    checks: Checks | None = None
    """Gradients and updates tensor by tensor; of the first seed only."""
    dropout: list[DropoutPlace] | None = None
    """Every place of dropout, with the dropout of the study; of the first seed only. Null where
    nothing is to be dropped, or no place can be seen."""
    dropout_probability: Proportion = 0.0
    """What the study asks for at every place."""
    moments: DropoutMoments | None = None
    """Loss and gradient with the dropout of the study; of the first seed only. Null where nothing
    is to be dropped, or the copies of the batch cannot be divided among the ranks."""
    as_timed: Checks | None = None
    """The checks of a few steps more without deterministic algorithms, which timed runs do not use;
    null where they make no difference."""


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
    kernels: StepKernels | None = None
    """What computed the first step of the first seed; null if it is not ok."""
    provenance: Provenance
    """Where this comes from."""


CertificateStatus = Literal[
    "equivalent",
    "not_equivalent",
    "inconclusive",
    "different",
    "unsupported",
    "oom",
    "diverged",
    "failed",
]


DeviationOf = Literal[
    "loss",
    "grad_norm",
    "weights",
    "replicas",
    "final_loss",
    "point_loss",
    "point_norm",
    "gradient",
    "gradient_ratio",
    "update",
    "update_ratio",
    "resumed",
    "decoding",
    "validation",
    "dropout",
    "dropout_loss",
    "dropout_gradient",
    "dropout_spread",
    "dropout_draws",
    "dropout_slope",
]


class Deviation(Schema):
    """The largest difference from the reference in one quantity, and what is allowed."""

    quantity: DeviationOf
    """What is compared."""
    measured: Extreme
    """The difference, relative but for replicas; of final_loss the end of the interval of the mean
    difference that is farther from 0."""
    bound: Extreme
    """Largest difference allowed."""
    where: str
    """The step or tensor that has it."""

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed."""
        return self.measured <= self.bound


class CertificateStep(Schema):
    """One step of the first seed, beside that of the reference."""

    step: StepsOrNone
    """Optimizer step, from 1."""
    loss: Loss
    """Training loss of the variant."""
    reference_loss: Loss
    """Training loss of the reference."""
    grad_norm: Magnitude | None
    """Gradient norm of the variant."""
    reference_grad_norm: Magnitude | None
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
    seeds: list[Seed]
    """Seeds of the compared trainings."""
    deviations: list[Deviation]
    """What was measured; empty where nothing could be compared."""
    left_out: list[str]
    """Tensors that are not compared, because the loss does not depend on them."""
    steps: list[CertificateStep]
    """The course of the first seed."""
    power: Proportion | None = None
    """Of a statistical certificate, the probability to find a difference of the final loss of twice
    the margin; null in other classes, or where nothing could be compared."""
    timed_otherwise: list[str] = Field(default_factory=list)
    """In what the timed run was computed otherwise than the certified one. Unless it is empty, the
    certificate is not of what was timed."""
    kernels: StepKernels | None = None
    """What computed the certified training; null where nobody saw."""
    as_timed: bool = False
    """Whether steps without deterministic algorithms were checked too, which timed steps do not
    use."""
    provenance: Provenance | None
    """Where the variant's training comes from; null if there was none."""
