"""Short runs, their checks, and certificates: results/equivalence/."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, Seed, StepsOrNone
from schemas.config.data import Sha256
from schemas.config.measurement import AnyEquivalence
from schemas.results.common import (
    Cosine,
    Extreme,
    Loss,
    Magnitude,
    Many,
    Measured,
    Proportion,
    Status,
)
from schemas.results.runs import Provenance, StepKernels, Topology


class TensorDistance(Schema):
    """How far a tensor is from its expected value."""

    tensor: str
    """Canonical name of the tensor."""
    step: StepsOrNone
    """Optimizer step at which it was compared, from 1."""
    error: Magnitude
    """2-norm of the difference over the 2-norm of the expected tensor."""
    ratio: Magnitude
    """2-norm over that of the expected tensor."""
    cosine: Cosine
    """Cosine of the angle between the two; 0 for a tensor of zeros."""
    size: Magnitude
    """2-norm of the expected tensor."""
    rounding: Magnitude
    """Error due to the number format alone, determined without the variant's code."""
    kinks: Magnitude = 0.0
    """Error if every ReLU whose input is 0 up to rounding takes the other side."""


class CheckedPoint(Schema):
    """A step whose loss and gradients were recomputed, in 32 bits, or in 64 if that left a
    doubt."""

    step: StepsOrNone
    """Optimizer step, from 1."""
    loss: Loss
    """Training loss of the run."""
    expected_loss: Loss
    """Training loss from the same weights and the same global batch."""
    rounding: Magnitude
    """Relative error in this loss due to the number format alone."""
    norm: Magnitude
    """Norm of the run's whole gradient before clipping."""
    expected_norm: Magnitude
    """Norm of the gradient from the same weights and the same global batch."""


class DecodedTokens(Schema):
    """Decoding token by token with a cache, for translation or text continuation, compared with
    computing whole prefixes."""

    error: Magnitude
    """Largest error of the next token's logits, relative to their spread (2-norms)."""
    rounding: Magnitude
    """The same for an emulation of the number format; 0 for 32 bits."""


class CheckedValidation(Schema):
    """A validation on a few pairs after the last step."""

    loss: Loss
    """Validation loss of the run."""
    expected_loss: Loss
    """Validation loss expected from its weights, recomputed in 64 bits."""
    rounding: Magnitude
    """Largest relative error in a batch's loss due to the number format alone."""
    modes_changed: Many
    """Modules that the validation did not return from evaluation to training mode, or the
    reverse."""


class Checks(Schema):
    """A training checked against its own weights: every quantity is compared with the value
    expected from the run's own weights, global batches and gradients."""

    points: list[CheckedPoint]
    """Steps at which gradients were compared."""
    gradients: list[TensorDistance]
    """Gradient used by the optimizer, for every tensor at every point."""
    updates: list[TensorDistance]
    """Change of every tensor at the step with its largest error."""
    skipped_steps: StepsOrNone
    """Steps without an update because a gradient overflowed."""
    without_gradient: list[str] = Field(default_factory=list)
    """Tensors whose whole gradient was 0 at some steps only, with the first of them."""
    not_resumed: list[str] = Field(default_factory=list)
    """State that a checkpoint in the middle of the training failed to restore on any rank, apart
    from weights and optimizer state, which the next update covers."""
    decoding: DecodedTokens | None = None
    """Decoding with the final weights; null if only the model's own code can tell what is right,
    as for other libraries."""
    validation: CheckedValidation | None = None
    """A validation with the final weights; null if none was checked."""


class Agreement(Schema):
    """Number of elements in which two masks agree."""

    same: Many
    """Elements kept by both, or dropped by both."""
    of: Many
    """Elements compared."""


class DropoutPlace(Schema):
    """One dropout place, as observed in the model's outputs for known inputs."""

    place: str
    """The dropped items: embeddings, attention weights, units, or the output of a sub-layer."""
    dropped: Many
    """Elements dropped during training, in two passes."""
    of: Many
    """Elements observed."""
    factor: Measured | None
    """Scale factor of the kept elements; null if not observed."""
    dropped_in_evaluation: Many | None
    """Elements dropped in an evaluation; null if a validation with dropout shows it instead."""
    steps: Agreement
    """Between two consecutive passes."""
    rows: Agreement
    """Between the sentences of a batch."""
    layers: Agreement | None
    """Between this place and the previous one of the same shape, from the same random state;
    null for the first."""
    ranks: Agreement | None
    """Between two ranks; null with a single process."""
    tokens: Agreement | None = None
    """Between the tokens of a sentence; null if only one is observed."""
    elements: Agreement | None = None
    """Between the elements of a token, or the heads of its attention weights; null if there is
    only one."""


class DropoutMoments(Schema):
    """Effect of dropout on loss and gradient: repeated draws for one batch and the same weights.

    A batch consists of a few copies of the same pairs, divided among ranks and micro-batches, each
    of which draws its own masks.
    """

    losses: list[Loss]
    """Loss per target token in nats, for every copy at every draw."""
    grad_norms: list[Magnitude]
    """Gradient norm of the whole batch at every draw; overflowed ones are left out, and so are
    all of them if messages defer part of the gradient."""
    slope: Measured | None
    """Change of the loss along its gradient with fixed masks, over the change that the gradient
    predicts: 1 for the gradient of this loss; null if the gradient overflowed."""


class SeedTrajectory(Schema):
    """One short training, step by step."""

    seed: Seed
    """Seed of the initial weights and of the order of the batches."""
    initial_sha256: Sha256
    """Hash of the initial weights under their canonical names."""
    losses: list[Loss]
    """Training loss per target token in nats, all ranks, before the update of each step."""
    grad_norms: list[Magnitude | None]
    """Gradient norm before clipping; null if it overflowed and the step was skipped."""
    replica_differences: list[Magnitude] | None
    """Largest difference of a parameter between rank 0 and any other rank, after each step; null
    if there is only one copy of the parameters."""
    checks: Checks | None = None
    """Gradients and updates tensor by tensor; first seed only."""
    dropout: list[DropoutPlace] | None = None
    """Every dropout place, with the study's dropout; first seed only. Null if nothing is
    dropped, or no place can be observed."""
    dropout_probability: Proportion = 0.0
    """The study's dropout probability."""
    moments: DropoutMoments | None = None
    """Loss and gradient with the study's dropout; first seed only. Null if nothing is dropped,
    or the copies of the batch cannot be divided among the ranks."""
    replayed: Checks | None = None
    """Checks of a few steps with the study's dropout, against a computation with the same masks;
    first seed only. Null if nothing is dropped, or masks cannot be read."""
    not_replayed: str | None = None
    """Why the masks cannot be read; null if they can."""
    as_timed: Checks | None = None
    """Checks of a few additional steps without deterministic algorithms, which timed runs do not
    use; null if they make no difference."""


class Trajectory(Schema):
    """results/equivalence/trajectories/<name>/trajectory.json.

    Beside it, initial.safetensors and final.safetensors hold the weights of the first seed.
    """

    name: str
    """The variant, or reference."""
    status: Status
    """How it ended."""
    reason: str | None
    """Why the status is not ok, in a sentence."""
    traceback: str | None
    """The traceback of a failed run."""
    topology: Topology | None
    """Devices and processes used; null if the status is not ok."""
    seeds: list[SeedTrajectory]
    """One training per seed; empty if the status is not ok."""
    kernels: StepKernels | None = None
    """Kernels of the first step of the first seed; null if the status is not ok."""
    provenance: Provenance
    """Where this record comes from."""


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
    "no_gradient",
    "timed_update",
    "timed_rate",
    "timed_clipping",
    "timed_replicas",
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
    """The largest difference from the reference in one quantity, and its bound."""

    quantity: DeviationOf
    """The quantity compared."""
    measured: Extreme
    """The difference, relative except for replicas; for final_loss, the end of the mean
    difference's interval that is farther from 0."""
    bound: Extreme
    """Largest allowed difference."""
    where: str
    """Step or tensor with this difference."""

    @property
    def holds(self) -> bool:
        """Whether the difference is within its bound."""
        return self.measured <= self.bound


class CertificateStep(Schema):
    """One step of the first seed, alongside that of the reference."""

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
    """The variant's class, with its bounds."""
    status: CertificateStatus
    """The verdict, or why there is none."""
    reason: str
    """The verdict in a sentence."""
    reference: str | None
    """The run that it was compared with; null if none is possible."""
    seeds: list[Seed]
    """Seeds of the compared trainings."""
    deviations: list[Deviation]
    """The measured deviations; empty if nothing could be compared."""
    left_out: list[str]
    """Tensors not compared because the loss does not depend on them."""
    steps: list[CertificateStep]
    """Steps of the first seed."""
    power: Proportion | None = None
    """For a statistical certificate, the probability of detecting a final-loss difference of
    twice the margin; null for other classes, or if nothing could be compared."""
    timed_otherwise: list[str] = Field(default_factory=list)
    """How the timed run was computed differently from the certified one. Unless empty, the
    certificate does not cover the timed run."""
    kernels: StepKernels | None = None
    """Kernels of the certified training; null if not recorded."""
    as_timed: bool = False
    """Whether steps without deterministic algorithms, which timed steps do not use, were checked
    too."""
    provenance: Provenance | None
    """Where the variant's training comes from; null if there was none."""
