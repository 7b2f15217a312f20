"""Facts that techniques state with their settings, for whatever measures, predicts or checks them.

Nothing else asks which technique it is: a new one that states its facts is known everywhere.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

NumberFormat = Literal["fp32", "tf32", "bf16", "fp16"]
"""What the operands of a matrix product are rounded to."""

MatmulMode = Literal["ieee", "onednn", "tf32", "bf16"]
"""How products of 32-bit tensors are computed inside: in 32 bits by torch's choice of library or
by oneDNN, or in a shorter format."""


@dataclass(frozen=True)
class Numbers:
    """Number formats of a training step, and bytes of each number that it keeps."""

    products: NumberFormat = "fp32"
    """Format of the operands of matrix products, forward and backward."""
    results: bool = False
    """Whether products give tensors of 16 bits."""
    everything: bool = False
    """Whether what lies between products has 16 bits, too."""
    rounded_weights: bool = False
    """Whether all weights are rounded to 16 bits before they are used, also those that no product
    takes: of normalizations, biases and embeddings."""
    matmul: MatmulMode = "ieee"
    """How products of 32-bit tensors are computed inside: a switch of the whole process."""
    device: Literal["cpu", "cuda"] | None = None
    """The one kind of device that has it; null for any."""
    loss_scaled: bool = False
    """Whether the loss is scaled, and a step is skipped whose gradients overflow."""
    weights: float = 4.0
    """Bytes of a weight that the model keeps."""
    copies: float = 0.0
    """Bytes of its copies that layers compute with."""
    gradients: float = 4.0
    """Bytes of its gradient, in messages too."""
    masters: float = 0.0
    """Bytes of the weight of 32 bits that the optimizer keeps beside one of fewer."""


@dataclass(frozen=True)
class AdamRule:
    """Adam (arXiv 1412.6980, algorithm 1); with decay AdamW (arXiv 1711.05101, algorithm 2)."""

    betas: tuple[float, float]
    eps: float
    decay: float = 0.0


@dataclass(frozen=True)
class MomentumRule:
    """Gradient descent with momentum; the first step takes the gradient as the velocity."""

    momentum: float
    rate_factor: float


UpdateRule = AdamRule | MomentumRule


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer keeps for each parameter beside it."""

    bytes: float
    moment_bits: Literal[8, 32] = 32
    """Of each number: 8 in blocks with a scale of their own (arXiv 2110.02861)."""
    takes_masters: bool = False
    """Whether it can keep weights of 32 bits beside those of 16, and update these."""


class LossFacts:
    """Facts of a loss."""

    of_hidden: ClassVar[bool] = False
    """Whether it takes the decoder's output and the output map, and never holds all logits."""
    computed_twice: ClassVar[bool] = False
    """Whether the backward pass computes logits once more, to save memory."""
    smooths_other_tokens_only: ClassVar[bool] = False
    """Whether padding and label take no share of the smoothing."""
    only_32_bits: ClassVar[str] = ""
    """What it does that 16 bits are too few for; empty where it takes any format."""


class StrategyFacts:
    """Facts of a parallel strategy."""

    one_process: ClassVar[bool] = False
    """Whether one process does everything."""
    central: ClassVar[bool] = False
    """Whether one process reads each batch for all devices and updates for them."""
    sharded: ClassVar[bool] = False
    """Whether each process keeps a part of the weights, gradients and optimizer state."""
    buckets: ClassVar[bool] = False
    """Whether gradients are all-reduced in buckets."""

    @property
    def message_hook(self) -> Any:
        """How a bucket is reduced; null for the backend's own all-reduce."""
        return getattr(self, "hook", None)

    @property
    def gathers_logits(self) -> bool:
        """Whether logits are gathered on one device before the loss."""
        return self.central and not getattr(self, "local_loss", False)


class HookFacts:
    """Facts of a communication hook."""

    payload: ClassVar[float | None] = 1.0
    """Bytes on the wire for each byte of gradients; null where that is not a constant."""
    by_backend: ClassVar[bool] = False
    """Whether the backend's own all-reduce takes what the hook makes of a bucket."""
    keeps_errors: ClassVar[bool] = False
    """Whether what a message leaves out is kept and added to the next one."""

    @property
    def steps_before(self) -> int:
        """Steps that pass before it works."""
        return 0

    @property
    def rounds_to(self) -> NumberFormat | None:
        """Shorter format in which gradients travel and are summed."""
        return None

    @property
    def link(self) -> Any:
        """The link that it emulates; null for the real one."""
        return None

    def at_once(self) -> Self:
        """The same from the first steps on, for short trainings."""
        return self
