"""What a short training was checked for, step by step and at its end: a part of its record."""

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.results.common import Cosine, Loss, Magnitude, Many


class TensorDistance(Schema):
    """How far one tensor is from the one that it should be."""

    tensor: str
    """Its canonical name."""
    step: StepsOrNone
    """Optimizer step at which it was compared, from 1."""
    error: Magnitude
    """2-norm of the difference over the 2-norm of what was expected."""
    ratio: Magnitude
    """2-norm over that of what was expected."""
    cosine: Cosine
    """Cosine of the angle between the two; 0 for a tensor of zeros."""
    size: Magnitude
    """2-norm of what was expected."""
    rounding: Magnitude
    """The error that the number format itself makes, found without the variant's code."""
    kinks: Magnitude = 0.0
    """The error where every ReLU whose input is 0 but for rounding takes the other side."""


class CheckedPoint(Schema):
    """A step whose loss and gradients were computed once more, in 32 bit, or in 64 where that left
    a doubt."""

    step: StepsOrNone
    """Optimizer step, from 1."""
    loss: Loss
    """Training loss of the run."""
    expected_loss: Loss
    """Training loss from the same weights and the same global batch."""
    rounding: Magnitude
    """Relative error that the number format itself makes in this loss."""
    norm: Magnitude
    """Norm of the whole gradient before clipping, of the run."""
    expected_norm: Magnitude
    """Norm of the gradient from the same weights and the same global batch."""


class DecodedTokens(Schema):
    """Translating, or going on with a text, a token at a time with what a cache keeps, beside the
    computation of whole prefixes."""

    error: Magnitude
    """The largest error of the next token's logits, relative to their spread (2-norms)."""
    rounding: Magnitude
    """The same of an emulation of the number format; 0 for 32 bits."""


class CheckedValidation(Schema):
    """A validation after the last step, on a few pairs."""

    loss: Loss
    """The validation loss of the run."""
    expected_loss: Loss
    """The one that its weights should give, computed once more in 64 bit."""
    rounding: Magnitude
    """Relative error that the number format itself makes in the loss of one of the batches, at the
    most."""
    modes_changed: Many
    """Modules that the validation did not put back from evaluation to training, or the reverse."""


class Checks(Schema):
    """A training beside its own weights: every quantity is compared with what the weights, the
    global batch and the gradients of the run itself should have given."""

    points: list[CheckedPoint]
    """The steps at which gradients were compared."""
    gradients: list[TensorDistance]
    """The gradient that the optimizer took, of every tensor at every point."""
    updates: list[TensorDistance]
    """The change of every tensor at the step where it was farthest off."""
    skipped_steps: StepsOrNone
    """Steps without an update, because a gradient had overflowed."""
    not_resumed: list[str] = Field(default_factory=list)
    """What a checkpoint in the middle of the training did not bring back, on any rank, beside
    weights and optimizer state, which the next update tells of."""
    decoding: DecodedTokens | None = None
    """Decoding with the final weights; null where only the model's own code can tell what is right,
    as of other libraries."""
    validation: CheckedValidation | None = None
    """A validation with the final weights; null where nobody looked."""
