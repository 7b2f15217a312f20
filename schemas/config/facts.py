"""Facts that techniques state with their settings, for measurements, predictions and checks.

No other code asks for the technique: a new one that states its facts works everywhere.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from schemas.base import Fraction, Schema

NumberFormat = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
"""Format that the operands of a matrix product are rounded to."""

MatmulMode = Literal["ieee", "onednn", "tf32", "bf16"]
"""How products of 32-bit tensors are computed internally: in 32 bits by torch's default library
or by oneDNN, or in a shorter format."""


@dataclass(frozen=True)
class Numbers:
    """Number formats of a training step, and bytes per stored number."""

    products: NumberFormat = "fp32"
    """Format of the operands of matrix products, forward and backward."""
    results: bool = False  # whether products return 16-bit tensors
    everything: bool = False  # whether values between products are 16-bit, too
    rounded_weights: bool = False
    """Whether all weights are rounded to 16 bits before use, including those that no product
    takes: normalizations, biases and embeddings."""
    matmul: MatmulMode = "ieee"
    """How products of 32-bit tensors are computed internally: a process-wide switch."""
    device: Literal["cpu", "cuda"] | None = None
    """The only kind of device that supports it; null for any."""
    loss_scaled: bool = False
    """Whether the loss is scaled, and steps with overflowing gradients are skipped."""
    weights: float = 4.0  # bytes per weight of the model
    copies: float = 0.0  # bytes per weight of the copies that layers compute with
    gradients: float = 4.0  # bytes per gradient element, in messages too
    masters: float = 0.0
    """Bytes per 32-bit master weight that the optimizer keeps in addition to a shorter one."""


@dataclass(frozen=True)
class AdamRule:
    """Adam (arXiv 1412.6980, algorithm 1); with decay AdamW (arXiv 1711.05101, algorithm 2)."""

    betas: tuple[float, float]
    eps: float
    decay: float = 0.0


@dataclass(frozen=True)
class MomentumRule:
    """Gradient descent with momentum; the first step uses the gradient as the velocity."""

    momentum: float
    rate_factor: float


UpdateRule = AdamRule | MomentumRule


class Moments(Schema):
    """Fields common to all kinds of Adam."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.98)  # decay rates of the first and second moment
    eps: float = Field(default=1e-9, ge=1e-30, le=1.0)  # added to the denominator

    @property
    def rule(self) -> UpdateRule | None:
        """How it updates a weight; null if its result is not Adam's."""
        return AdamRule(self.betas, self.eps, getattr(self, "weight_decay", 0.0))


class DecayedMoments(Moments):
    """Those of AdamW."""

    weight_decay: float = Field(default=0.0, ge=0, le=100.0)  # decoupled weight decay


@dataclass(frozen=True)
class OptimizerState:
    """State that an optimizer keeps for each parameter."""

    bytes: float
    moment_bits: Literal[8, 32] = 32
    """Bits per number: 8 in blocks with their own scales (arXiv 2110.02861)."""
    takes_masters: bool = False
    """Whether it can keep 32-bit weights in addition to 16-bit ones and update those."""
    divided: bool = False
    """Whether the ranks divide it, so that each keeps only the part for its share of parameters."""
    averages: bool = False  # whether an average of the trained weights is validated and saved


class LossFacts:
    of_hidden: ClassVar[bool] = False
    """Whether it takes the decoder's output and the output map, and never holds all logits."""
    computed_twice: ClassVar[bool] = False
    """Whether the backward pass recomputes logits to save memory."""
    smooths_other_tokens_only: ClassVar[bool] = False
    """Whether padding and the label get no share of the smoothing."""
    only_32_bits: ClassVar[str] = ""  # why 16 bits are too few for it; empty if it takes any format


class StrategyFacts:
    one_process: ClassVar[bool] = False  # whether a single process does everything
    central: ClassVar[bool] = False
    """Whether one process reads each batch and updates the weights for all devices."""
    sharded: ClassVar[bool] = False
    """Whether each process keeps a shard of the weights, gradients and optimizer state."""
    buckets: ClassVar[bool] = False  # whether gradients are all-reduced in buckets
    apart: ClassVar[bool] = False
    """Whether each process updates its weights by its own gradients, until all meet."""

    @property
    def message_hook(self) -> Any:
        """How a bucket is reduced; null for the backend's own all-reduce."""
        return getattr(self, "hook", None)

    @property
    def gathers_logits(self) -> bool:
        """Whether logits are gathered on one device before the loss."""
        return self.central and not getattr(self, "local_loss", False)


class HookFacts:
    payload: ClassVar[float | None] = 1.0
    """Bytes on the wire per byte of gradients; null if not constant."""
    by_backend: ClassVar[bool] = False
    """Whether the backend's own all-reduce sends what the hook makes of a bucket."""
    keeps_errors: ClassVar[bool] = False
    """Whether the error of a message is kept and added to the next one."""

    @property
    def steps_before(self) -> int:
        """Steps before the hook takes effect."""
        return 0

    @property
    def rounds_to(self) -> NumberFormat | None:
        """Shorter format in which gradients are sent and summed."""
        return None

    @property
    def link(self) -> Any:
        """The emulated link; null for the real one."""
        return None

    def at_once(self) -> Self:
        """The same hook taking effect from the first steps on, for short trainings."""
        return self
