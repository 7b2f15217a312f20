"""Short runs, their checks, and certificates: results/equivalence/."""

from typing import Literal

from pydantic import Field

from schemas.base import Schema, Seed, StepsOrNone
from schemas.config.data import Sha256
from schemas.config.measurement import AnyEquivalence
from schemas.results.common import (
    Cosine,
    Ending,
    Extreme,
    Loss,
    Magnitude,
    Many,
    Measured,
    Proportion,
)
from schemas.results.runs import Provenance, StepKernels, Topology


class TensorDistance(Schema):
    """How far a tensor is from its expected value."""

    tensor: str  # canonical name of the tensor
    step: StepsOrNone  # optimizer step at which it was compared, from 1
    error: Magnitude  # 2-norm of the difference over the 2-norm of the expected tensor
    ratio: Magnitude  # 2-norm over that of the expected tensor
    cosine: Cosine  # cosine of the angle between the two; 0 for a tensor of zeros
    size: Magnitude  # 2-norm of the expected tensor
    elements: Many = 0  # of the tensor; 0 if not counted
    rounding: Magnitude  # the floor: error due to rounding alone, without the variant's code
    along: Magnitude = 0.0  # the part of it along the expected tensor; 0 if it was not measured
    kinks: Magnitude = 0.0  # error if every ReLU with an input near 0 takes the other side


class CheckedPoint(Schema):
    """A step whose loss and gradients were recomputed, in 32 bits, or in 64 if that left a
    doubt."""

    step: StepsOrNone  # optimizer step, from 1
    loss: Loss  # training loss of the run
    expected_loss: Loss  # training loss from the same weights and the same global batch
    rounding: Magnitude  # relative error in this loss due to the number format alone
    norm: Magnitude  # norm of the run's whole gradient before clipping
    expected_norm: Magnitude  # norm of the gradient from the same weights and the same global batch
    norm_rounding: Magnitude = 0.0  # relative error in this norm by rounding, where it was measured


class DecodedTokens(Schema):
    """Decoding token by token with a cache, for translation or text continuation, compared with
    computing whole prefixes."""

    error: Magnitude  # largest error of the next token's logits, relative to their spread (2-norms)
    rounding: Magnitude  # the same for an emulation of the number format


class CheckedValidation(Schema):
    """A validation on a few pairs after the last step."""

    loss: Loss  # validation loss of the run
    expected_loss: Loss  # validation loss expected from its weights, recomputed in 64 bits
    rounding: Magnitude  # largest relative error in a batch's loss due to the number format alone
    modes_changed: Many  # modules in evaluation mode in training, or in another mode after this


class Checks(Schema):
    """A training checked against its own weights: every quantity is compared with the value
    expected from the run's own weights, global batches and gradients."""

    points: list[CheckedPoint]  # steps at which gradients were compared
    gradients: list[TensorDistance]  # gradients that the optimizer used, at every point
    means: list[TensorDistance] = Field(default_factory=list)
    """Mean error of every tensor's gradient over all points, for formats with fewer than 32 bits:
    rounding cancels over the steps, a fault does not."""
    updates: list[TensorDistance]  # change of every tensor at the step with its largest error
    without_gradient: list[str] = Field(default=[])  # wrongly 0 at some steps only, with the first
    not_resumed: list[str] = Field(default=[])  # state that a checkpoint did not restore
    decoding: DecodedTokens | None = (
        None  # null if the model's texts are too short, or after resuming
    )
    validation: CheckedValidation | None = None  # with the final weights; null if not checked


class Agreement(Schema):
    """Number of elements in which two masks agree."""

    same: Many  # elements kept by both, or dropped by both
    of: Many  # elements compared


class DropoutPlace(Schema):
    """One dropout place, as observed in the model's outputs for known inputs."""

    place: str  # embeddings, attention weights, units, or the output of a sub-layer
    dropped: Many  # elements dropped during training, in two passes of one rank
    of: Many  # elements observed
    factor: Measured | None  # scale factor of the kept elements; null if not observed
    dropped_in_evaluation: Many | None  # null if a validation with dropout shows it instead
    steps: Agreement  # between two consecutive passes
    rows: Agreement  # between the sentences of a batch
    layers: Agreement | None  # between this place and the previous one of the same shape
    ranks: Agreement | None  # between the two ranks that agree most; null with a single process
    tokens: Agreement | None = None  # between the tokens of a sentence; null if only one
    elements: Agreement | None = None  # between the elements of a token; null if only one


class DropoutMoments(Schema):
    """Effect of dropout on loss and gradient: repeated draws for one batch and the same weights.

    A batch consists of a few copies of the same pairs, divided among ranks and micro-batches, each
    of which draws its own masks.
    """

    losses: list[Loss]  # loss per target token in nats, for every copy at every draw
    grad_norms: list[Magnitude]  # of the whole batch at every draw that did not overflow
    slope: Measured | None  # change of the loss along its gradient over the predicted one
    optional: bool = False  # whether the model, a user's own, may have no dropout


class CourseFloor(Schema):
    """How far the reference's training differs from itself, if its first weights are changed in
    their last place."""

    loss: Magnitude  # largest relative difference of a loss
    grad_norm: Magnitude  # the same of a gradient norm
    weights: dict[str, Magnitude]  # of final weights, relative to their change during training


class SeedTrajectory(Schema):
    """One short training, step by step."""

    seed: Seed  # seed of the initial weights and of the order of the batches
    initial_sha256: Sha256  # hash of the initial weights under their canonical names
    losses: list[Loss]  # per target token in nats, all ranks, before each update
    grad_norms: list[Magnitude | None]  # before clipping; null if the step was skipped
    replica_differences: list[Magnitude] | None
    """Largest difference of a parameter between rank 0 and any other rank, after each step; null
    if there is only one copy of the parameters."""
    floor: CourseFloor | None = None  # the reference against itself; null for others
    checks: Checks | None = None  # gradients and updates tensor by tensor; first seed only
    dropout: list[DropoutPlace] | None = None  # with the study's dropout; first seed only
    dropout_probability: Proportion = 0.0  # the study's dropout probability
    moments: DropoutMoments | None = None  # with the study's dropout; first seed only
    after_resuming: Checks | None = None  # first steps, with dropout if its masks can be read
    not_replayed: str | None = None  # why the masks cannot be read; null if they can
    as_timed: Checks | None = None  # steps without deterministic algorithms, as timed


class Trajectory(Ending):
    """results/equivalence/trajectories/<name>/trajectory.json.

    Beside it, initial.safetensors and final.safetensors hold the weights of the first seed.
    """

    name: str  # the variant, or reference
    traceback: str | None
    topology: Topology | None  # devices and processes used; null if the status is not ok
    seeds: list[SeedTrajectory]  # one training per seed; empty if the status is not ok
    kernels: StepKernels | None = None  # first step of the first seed; null if not ok
    provenance: Provenance


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
    "gradient_mean",
    "gradient_mean_ratio",
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

    quantity: DeviationOf  # the quantity compared
    measured: Extreme  # relative except for replicas; for final_loss the far end
    bound: Extreme  # largest allowed difference
    floor: Extreme = 0.0  # difference by rounding alone, which the bound follows from; 0 if fixed
    where: str  # step or tensor with this difference

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound


class Certificate(Schema):
    """results/equivalence/<variant>.json: whether a variant trains the same model."""

    variant: str
    equivalence: AnyEquivalence  # the variant's class, with its bounds
    status: CertificateStatus  # the verdict, or why there is none
    reason: str  # the verdict in a sentence
    reference: str | None  # the run that it was compared with; null if none is possible
    seeds: list[Seed]  # seeds of the compared trainings
    deviations: list[Deviation]  # the measured deviations; empty if nothing could be compared
    left_out: list[str]  # tensors not compared because the loss does not depend on them
    steps: StepsOrNone = 0  # steps of the first seed that both trainings took
    power: Proportion | None = None  # of a statistical one to see twice the margin
    timed_otherwise: list[str] = Field(default=[])  # unless empty, it does not cover the timed run
    kernels: StepKernels | None = None  # kernels of the certified training; null if not recorded
    as_timed: bool = False  # whether steps without deterministic algorithms were checked too
    provenance: Provenance | None  # where the variant's training comes from; null if there was none
