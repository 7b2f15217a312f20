"""Training: precision, optimizer, schedule, accumulation, and the loop's intervals."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Count, Fraction, Rate, Schema, Seed, Steps, StepsOrNone, omitted
from schemas.config.facts import (
    DecayedMoments,
    LossFacts,
    Moments,
    MomentumRule,
    Numbers,
    OptimizerState,
    UpdateRule,
)
from transformer_core.techniques.compiled_adamw import CompiledAdamW
from transformer_core.techniques.cut_cross_entropy import CutCrossEntropy
from transformer_core.techniques.float8 import Float8
from transformer_core.techniques.liger import LigerLoss
from transformer_core.techniques.linear_cross_entropy import LinearCrossEntropy
from transformer_core.techniques.muon import Muon
from transformer_core.techniques.schedule_free import ScheduleFreeAdamW
from transformer_core.techniques.zero_redundancy import ZeroRedundancy


class Fp32(Schema):
    """32-bit floating point throughout."""

    kind: Literal["fp32"] = "fp32"

    numbers: ClassVar = Numbers()


class Fp32Onednn(Schema):
    """32-bit floating point throughout, with matrix products by oneDNN instead of torch's
    default MKL; CPU only. On non-Intel CPUs with 512-bit registers, MKL uses only half of each."""

    kind: Literal["fp32_onednn"]

    numbers: ClassVar = Numbers(matmul="onednn", device="cpu")


class Bf16(Schema):
    """bfloat16 autocast over 32-bit weights."""

    kind: Literal["bf16"]

    numbers: ClassVar = Numbers("bf16", results=True, copies=2.0)


class Bf16Weights(Schema):
    """Weights, activations and gradients in bfloat16, with no casts between them. The optimizer,
    adamw only, also keeps 32-bit weights and updates those (arXiv 1710.03740, 3.1). In one
    process or with DDP, whose messages are then 16-bit."""

    kind: Literal["bf16_weights"]

    numbers: ClassVar = Numbers(
        "bf16",
        results=True,
        everything=True,
        rounded_weights=True,
        weights=2.0,
        gradients=2.0,
        masters=4.0,
    )


class Fp16(Schema):
    """float16 autocast over 32-bit weights, with an adaptive loss scale (arXiv 1710.03740)."""

    kind: Literal["fp16"]
    initial_scale: float = Field(default=65536.0, ge=2.0**-24, le=2.0**64)
    """Initial loss scale; it doubles after growth_interval good steps."""
    growth_interval: Steps = 2_000  # steps without overflow after which the loss scale doubles

    numbers: ClassVar = Numbers("fp16", results=True, loss_scaled=True, copies=2.0)


class Tf32(Schema):
    """32-bit weights and activations, matrix products in TensorFloat-32; needs CUDA."""

    kind: Literal["tf32"]

    numbers: ClassVar = Numbers("tf32", matmul="tf32", device="cuda")


class Bf16Matmul(Schema):
    """32-bit weights and activations, with matrix products internally in bfloat16; needs a CPU
    with AMX: with AVX-512 BF16 alone, torch keeps them in 32 bits."""

    kind: Literal["bf16_matmul"]

    numbers: ClassVar = Numbers("bf16", matmul="bf16", device="cpu")


AnyPrecision = Annotated[
    Fp32 | Fp32Onednn | Bf16 | Bf16Weights | Fp16 | Tf32 | Bf16Matmul | Float8,
    Field(discriminator="kind"),
]


class AdamW(DecayedMoments):
    """AdamW (arXiv 1711.05101): 8 bytes of state per parameter."""

    kind: Literal["adamw"] = "adamw"
    fused: bool = True  # use a single fused kernel per step if torch has one for the device

    state: ClassVar = OptimizerState(8.0, takes_masters=True)


class Adam(Moments):
    """Adam (arXiv 1412.6980) as in the published code, by torch's default: many small operations per
    parameter on a CPU, on all parameters together on a GPU; 8 bytes of state."""

    kind: Literal["adam"]

    state: ClassVar = OptimizerState(8.0)


class Sgd(Schema):
    """Stochastic gradient descent with momentum: 4 bytes of state per parameter."""

    kind: Literal["sgd"]
    momentum: Fraction = 0.9  # fraction of the previous update that is kept
    rate_factor: float = Field(default=10.0, gt=0, le=1e6)
    """Multiplies the schedule's learning rate, which is tuned for Adam's normalized updates."""

    @property
    def state(self) -> OptimizerState:
        return OptimizerState(4.0 if self.momentum else 0.0)

    @property
    def rule(self) -> UpdateRule:
        return MomentumRule(self.momentum, self.rate_factor)


class AdamW8bit(DecayedMoments):
    """AdamW with 8-bit state (arXiv 2110.02861): 2 bytes of state per parameter."""

    kind: Literal["adamw_8bit"]

    state: ClassVar = OptimizerState(2.0, moment_bits=8)


AnyOptimizer = Annotated[
    AdamW | Adam | Sgd | AdamW8bit | Muon | CompiledAdamW | ZeroRedundancy | ScheduleFreeAdamW,
    Field(discriminator="kind"),
]


class WholeLoss(LossFacts, Schema):
    """The loss of all logits of a micro-batch at once."""

    kind: Literal["whole"] = "whole"


class ChunkedLoss(LossFacts, Schema):
    """Computes the output map and loss for a few target tokens at a time, and again in the
    backward pass: the logits of a micro-batch never exist all at once."""

    kind: Literal["chunked"]
    rows: Annotated[int, Field(ge=1, le=100_000_000), Unit("tokens")] | None = None
    """Number of target tokens, including padding, whose logits exist at a time. Null: 256 on a
    CPU; on a GPU enough for large kernels, with at most 2^26 logits in total."""

    of_hidden: ClassVar = True
    computed_twice: ClassVar = True


class KlDivergence(LossFacts, Schema):
    """The published loss: log-softmax over the whole vocabulary, explicit smoothed targets, and
    their Kullback-Leibler divergence. Padding and the label get no share of the smoothing. The
    targets' entropy, a constant, is added so that losses compare with those of the other kinds."""

    kind: Literal["kl_divergence"]

    smooths_other_tokens_only: ClassVar = True


class OnePassLoss(LossFacts, Schema):
    """Computes output map, loss and gradients in one pass over chunks of logits, whose gradient
    overwrites them: no logits are kept or recomputed. On a CPU, padding is skipped."""

    kind: Literal["one_pass"]

    of_hidden: ClassVar = True


AnyLoss = Annotated[
    WholeLoss
    | ChunkedLoss
    | KlDivergence
    | OnePassLoss
    | LinearCrossEntropy
    | LigerLoss
    | CutCrossEntropy,
    Field(discriminator="kind"),
]


Clipping = Literal["apart", "folded"]  # where overly large gradients are scaled down


class Noam(Schema):
    """Linear warm-up, then the inverse square root of the step (arXiv 1706.03762, 5.3)."""

    kind: Literal["noam"] = "noam"
    factor: float = Field(default=1.0, gt=0, le=1e6)
    """Multiplies the rate d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup: Steps = 100  # steps of linear warm-up


class WarmedUp(Schema):
    """Fields common to schedules with a peak."""

    peak: Rate = Field(examples=[0.003])  # highest learning rate
    warmup: StepsOrNone = 0  # steps of linear warm-up


class Linear(WarmedUp):
    """Linear warm-up to a peak, then linear decay to zero at the last step."""

    kind: Literal["linear"]


class Cosine(WarmedUp):
    """Linear warm-up to a peak, then a half cosine down to zero at the last step."""

    kind: Literal["cosine"]


class Constant(WarmedUp):
    """Linear warm-up, then the same learning rate throughout."""

    kind: Literal["constant"]


AnySchedule = Annotated[Noam | Linear | Cosine | Constant, Field(discriminator="kind")]


class Accumulation(Schema):
    """Splits a global batch into micro-batches whose gradients are summed."""

    micro_batches: Count = 1  # micro-batches per optimizer step
    synchronise: Literal["last", "every"] = "last"
    """Reduce gradients over devices only after the last micro-batch (no_sync), or after each."""


class Training(Schema):
    """How a run trains."""

    steps: Steps = 300  # optimizer steps
    seed: Seed = 1  # seed of the initial weights, the order of the batches and dropout
    precision: AnyPrecision = Fp32()  # number format of the matrix products and activations
    optimizer: AnyOptimizer = AdamW()  # update rule
    schedule: AnySchedule = Noam()  # learning rate over the steps
    rate_follows_batch: Literal["none", "square_root", "linear"] = omitted("none")
    """Whether the learning rate grows with batching.scale: by its square root (arXiv 2205.10287,
    for Adam) or in proportion (arXiv 1706.02677, for SGD)."""
    accumulation: Accumulation = Accumulation()  # micro-batches per step
    loss: AnyLoss = WholeLoss()  # how the loss is computed from the decoder's output
    label_smoothing: Fraction = 0.1
    """Probability mass that the loss assigns to the other tokens of the vocabulary."""
    clip_norm: float = Field(default=1.0, ge=0, le=1e9)
    """Largest gradient norm; larger gradients are scaled down. 0 does not clip."""
    clipping: Clipping = "apart"
    """Whether gradients are scaled in a separate pass (apart), or by the optimizer as it reads
    them (folded), which torch's fused kernels can do. fp16, where those kernels unscale the
    loss, and shards always use apart."""
    log_every: Steps = 10  # steps between two readings of the loss on the host
    validate_every: StepsOrNone = 100
    """Steps between two validation losses; 0 validates at the end only."""
    checkpoint_writing: Literal["waiting", "behind"] = omitted("waiting")
    """Whether training waits until a checkpoint is on disk (waiting), or only until it is copied to
    host memory, and continues while a thread writes it (behind)."""
    checkpoint_every: StepsOrNone = 0
    """Steps between two checkpoints; 0 saves the final weights only."""


EXTRA_TOKENS = 50
"""A translation may be this many tokens longer than its own source (arXiv 1706.03762, 6.1)."""


class Evaluation(Schema):
    """How the trained model is evaluated on the test split."""

    beam_size: Annotated[int, Field(ge=1, le=256)] = 4
    """Hypotheses per sentence in beam search; 1 is greedy decoding."""
    length_penalty: float = Field(default=0.6, ge=0, le=10.0)
    """Exponent alpha of the length penalty (arXiv 1609.08144, equation 14)."""
    max_pairs: Annotated[int, Field(ge=0, le=10_000_000_000), Unit("pairs")] = 1_000
    """Maximum number of test pairs translated; 0 for none, for studies whose trainings are too
    short to translate anything."""
    batch_pairs: Annotated[int, Field(ge=1, le=65_536), Unit("pairs")] = 64
    """Sentences translated together."""
    samples: int = Field(default=5, ge=0, le=1_000)  # translations shown in the report
