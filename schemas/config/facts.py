"""Facts that techniques state with their settings, for whatever measures, predicts or checks them.

Nothing else asks which technique it is: a new one that states its facts is known everywhere.
"""

from dataclasses import dataclass
from typing import Literal

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
