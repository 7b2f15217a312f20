"""Training: precision, optimizer, schedule, accumulation, and the loop's intervals."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Fraction, Schema


class Fp32(Schema):
    """32-bit floating point throughout."""

    kind: Literal["fp32"] = "fp32"


class Bf16(Schema):
    """bfloat16 autocast over 32-bit weights."""

    kind: Literal["bf16"]


class Fp16(Schema):
    """float16 autocast over 32-bit weights, with a loss scale that adapts (arXiv 1710.03740)."""

    kind: Literal["fp16"]
    initial_scale: float = Field(default=65536.0, gt=0)
    """Loss scale at the start; it doubles after growth_interval good steps."""
    growth_interval: Count = 2_000
    """Steps without overflow after which the loss scale doubles."""


class Tf32(Schema):
    """32-bit weights and activations, matrix products in TensorFloat-32; needs CUDA."""

    kind: Literal["tf32"]


class Bf16Matmul(Schema):
    """32-bit weights and activations, matrix products in bfloat16 inside; needs a CPU with AMX
    or AVX-512 BF16."""

    kind: Literal["bf16_matmul"]


AnyPrecision = Annotated[Fp32 | Bf16 | Fp16 | Tf32 | Bf16Matmul, Field(discriminator="kind")]


class AdamW(Schema):
    """AdamW (arXiv 1711.05101): 8 bytes of state per parameter."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    eps: float = Field(default=1e-9, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    fused: bool = True
    """One fused kernel per step where torch has one for the device."""


class Sgd(Schema):
    """Stochastic gradient descent with momentum: 4 bytes of state per parameter."""

    kind: Literal["sgd"]
    momentum: Fraction = 0.9
    """Share of the previous update."""
    rate_factor: float = Field(default=10.0, gt=0)
    """Multiplies the schedule's learning rate, which is made for Adam's normalised updates."""


class AdamW8bit(Schema):
    """AdamW with 8-bit state (arXiv 2110.02861): 2 bytes of state per parameter."""

    kind: Literal["adamw_8bit"]
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    eps: float = Field(default=1e-9, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""


AnyOptimizer = Annotated[AdamW | Sgd | AdamW8bit, Field(discriminator="kind")]


class WholeLoss(Schema):
    """The loss of all logits of a micro-batch at once."""

    kind: Literal["whole"] = "whole"


class ChunkedLoss(Schema):
    """Output map and loss a few target tokens at a time, and once more in the backward pass: the
    logits of a micro-batch never exist together."""

    kind: Literal["chunked"]
    rows: Count = 256
    """Target tokens, padding included, whose logits exist at a time."""


AnyLoss = Annotated[WholeLoss | ChunkedLoss, Field(discriminator="kind")]


class Noam(Schema):
    """Linear warm-up, then the inverse square root of the step (arXiv 1706.03762, 5.3)."""

    kind: Literal["noam"] = "noam"
    factor: float = Field(default=1.0, gt=0)
    """Multiplies the rate d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup: Count = 100
    """Steps of linear warm-up."""


class Linear(Schema):
    """Linear warm-up to a peak, then linear decay to zero at the last step."""

    kind: Literal["linear"]
    peak: float = Field(gt=0)
    """Highest learning rate."""
    warmup: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""


class Cosine(Schema):
    """Linear warm-up to a peak, then a half cosine down to zero at the last step."""

    kind: Literal["cosine"]
    peak: float = Field(gt=0)
    """Highest learning rate."""
    warmup: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""


class Constant(Schema):
    """Linear warm-up, then the same learning rate throughout."""

    kind: Literal["constant"]
    peak: float = Field(gt=0)
    """The learning rate."""
    warmup: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""


AnySchedule = Annotated[Noam | Linear | Cosine | Constant, Field(discriminator="kind")]


class Accumulation(Schema):
    """Splitting a global batch into micro-batches whose gradients add up."""

    micro_batches: Count = 1
    """Micro-batches per optimizer step."""
    synchronise: Literal["last", "every"] = "last"
    """Reduce gradients over devices after the last micro-batch only (no_sync), or after each."""


class Training(Schema):
    """How a run trains."""

    steps: Count = 300
    """Optimizer steps."""
    seed: int = Field(default=1, ge=0)
    """Seed of the initial weights, the order of the batches and dropout."""
    precision: AnyPrecision = Fp32()
    """Number format of the matrix products and activations."""
    optimizer: AnyOptimizer = AdamW()
    """Update rule."""
    schedule: AnySchedule = Noam()
    """Learning rate over the steps."""
    accumulation: Accumulation = Accumulation()
    """Micro-batches per step."""
    loss: AnyLoss = WholeLoss()
    """How the loss is computed from the decoder's output."""
    label_smoothing: Fraction = 0.1
    """Probability mass that the loss gives to the other tokens of the vocabulary."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm; larger gradients are scaled down. 0 does not clip."""
    log_every: Count = 10
    """Steps between two readings of the loss on the host."""
    validate_every: int = Field(default=100, ge=0)
    """Steps between two validation losses; 0 validates at the end only."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Steps between two checkpoints; 0 saves the final weights only."""


class Evaluation(Schema):
    """How the trained model is judged on the test split."""

    beam_size: Count = 4
    """Hypotheses per sentence in beam search; 1 is greedy decoding."""
    length_penalty: float = Field(default=0.6, ge=0)
    """Exponent alpha of the length penalty (arXiv 1609.08144, equation 14)."""
    max_pairs: Count = 1_000
    """At most this many test pairs are translated."""
    batch_pairs: Count = 64
    """Sentences that are translated together."""
    samples: int = Field(default=5, ge=0)
    """Translations shown in the report."""
