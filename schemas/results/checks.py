"""Checks of a short training, step by step and at its end: a part of its record."""

from pydantic import Field

from schemas.base import Schema, StepsOrNone
from schemas.results.common import Cosine, Loss, Magnitude, Many


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
