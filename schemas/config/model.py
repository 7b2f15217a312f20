"""Models built by ``transformer_core.models``."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import FACTORY_PATTERN, Count, Decimal, Fraction, Schema, Whole
from transformer_core.techniques.residual_norm import ResidualNorm


class ReferenceAttention(Schema):
    """Explicit softmax(QK^T)V, as in the Annotated Transformer."""

    kind: Literal["reference"]


AttentionBackend = Literal["auto", "flash", "efficient", "cudnn", "math"]
"""CUDA kernel that computes attention."""


class SdpaAttention(Schema):
    """torch's fused scaled-dot-product attention."""

    kind: Literal["sdpa"] = "sdpa"
    backend: AttentionBackend = "auto"
    """Kernel on CUDA. auto uses flash where possible (16 bits, no mask), otherwise efficient,
    otherwise math, but never cuDNN's, which torch would use in validation and certificates, and
    a different one with dropout. A named kernel is used or the run is unsupported: flash takes
    no mask, so it needs tokens: unpadded, in validation too; decoding, which pads, uses auto
    instead."""


class PublishedAttention(Schema):
    """Explicit softmax(QK^T)V as in the Annotated Transformer: scores scaled after the product,
    and padding and causal masks built once per batch."""

    kind: Literal["published"]


class FusedSoftmaxAttention(Schema):
    """Explicit softmax(QK^T)V, with mask, softmax and dropout of the scores in one compiled loop
    on a CPU, in 32 bits or bfloat16; the backward pass regenerates dropout masks. Elsewhere, and
    without dropout, same as reference."""

    kind: Literal["fused_softmax"]


AnyAttention = Annotated[
    ReferenceAttention | SdpaAttention | PublishedAttention | FusedSoftmaxAttention,
    Field(discriminator="kind"),
]


class TorchDropout(Schema):
    """torch's own dropout: on a CPU, it draws a floating-point number for every element."""

    kind: Literal["torch"]


class SharedDraws(Schema):
    """Four elements share a 64-bit random number on a CPU; elsewhere torch's own dropout."""

    kind: Literal["shared_draws"] = "shared_draws"


class FusedDropout(Schema):
    """On a CPU in 32 bits or bfloat16, one compiled loop draws, drops, and adds the residual or
    applies the ReLU; the backward pass regenerates masks. Elsewhere torch's own."""

    kind: Literal["fused"]


AnyDropout = Annotated[TorchDropout | SharedDraws | FusedDropout, Field(discriminator="kind")]


class FusedNorm(Schema):
    """torch's layer normalization: one kernel."""

    kind: Literal["fused"] = "fused"

    by_sample_deviation: ClassVar = False


class PublishedNorm(Schema):
    """Layer normalization step by step as in the Annotated Transformer: divided by the sample
    standard deviation (d - 1 degrees of freedom) plus eps instead of the root of variance plus
    eps, so the result is smaller by sqrt((d - 1) / d)."""

    kind: Literal["published"]

    by_sample_deviation: ClassVar = True


AnyNorm = Annotated[FusedNorm | PublishedNorm | ResidualNorm, Field(discriminator="kind")]


class SeparateQkv(Schema):
    """Three matrix products: one each for queries, keys and values."""

    kind: Literal["separate"]


class FusedQkv(Schema):
    """One matrix product for queries, keys and values (keys and values in cross-attention)."""

    kind: Literal["fused"] = "fused"


class StreamsQkv(Schema):
    """Three matrix products on three CUDA streams, ordered by events."""

    kind: Literal["streams"]
    device_synchronise: bool = False
    """As published in the original study: every call creates new streams and synchronises the
    whole device before and after."""


class LayoutQkv(Schema):
    """One matrix product whose result is split in one of the original study's two layouts."""

    kind: Literal["layout"]
    outermost: Literal["batch", "qkv"]
    """(b, qkv, h, n, d) with the batch outermost, or (qkv, b, h, n, d)."""


AnyQkv = Annotated[SeparateQkv | FusedQkv | StreamsQkv | LayoutQkv, Field(discriminator="kind")]


class PaddedTokens(Schema):
    """Padding is computed like any other token, but excluded from the loss."""

    kind: Literal["padded"] = "padded"


class UnpaddedTokens(Schema):
    """The real tokens of a batch in one list: padding is not computed. Attention processes the
    sentences in blocks of similar lengths, each padded to its longest."""

    kind: Literal["unpadded"]
    blocks: Count = 4
    """Blocks per batch: more blocks mean less padding but smaller matrix products."""
    row_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """The list is padded to a multiple of this, in tokens. Fewer distinct shapes mean that
    kernels built for one shape (oneDNN's in bfloat16) are built once, at the cost of a little
    padding."""


AnyTokens = Annotated[PaddedTokens | UnpaddedTokens, Field(discriminator="kind")]


ResidualFormat = Literal["as_computed", "bf16"]
Compiling = Literal["none", "layers", "graphs"]


class Transformer(Schema):
    """The encoder-decoder of "Attention Is All You Need" (arXiv 1706.03762)."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: Count = 2
    """Layers of the encoder."""
    decoder_layers: Count = 2
    """Layers of the decoder."""
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements."""
    d_ff: Annotated[int, Unit("elements")] = Field(default=512, ge=1, le=1_048_576)
    """Width of the feed-forward layers, in elements."""
    heads: Count = 4
    """Attention heads; must divide d_model."""
    dropout: Fraction = 0.1
    """Probability that an activation is dropped in training."""
    tied_embeddings: bool = True
    """Whether the source embedding, target embedding and output projection share one matrix."""
    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before (Annotated Transformer) or after (original paper) each
    sub-layer."""
    attention: AnyAttention = SdpaAttention()
    """How attention is computed."""
    qkv: AnyQkv = FusedQkv()
    """How queries, keys and values are projected."""
    memory_products: Literal["per_layer", "together"] = "per_layer"
    """Whether each decoder layer projects the encoder's output to keys and values itself, or one
    matrix product does so for all layers up front (together). The latter needs the weights of
    all layers at once: not with FSDP."""
    dropout_method: AnyDropout = SharedDraws()
    """How activations are dropped."""
    norm_method: AnyNorm = FusedNorm()
    """How layer normalization is computed."""
    tokens: AnyTokens = PaddedTokens()
    """How padding is treated in training."""
    residual: ResidualFormat = "as_computed"
    """Number format of the residual stream: that of the weights (32 bits under autocast), or
    bfloat16, which halves memory traffic between matrix products; needs training.precision bf16
    or bf16_weights."""
    compile: Compiling = "none"
    """torch.compile in training: with layers, compiled once per kind of layer for any lengths,
    which takes a minute or two on a CPU and is cached on disk; needs a C++ compiler. In one
    process or with DDP, on padded rows. With graphs, on CUDA, each layer is also recorded as a
    CUDA graph for every shape and launched at once; batching.rows.width_multiple limits the
    number of shapes. In one process, without accumulation."""
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing (arXiv 1604.06174): with layers, the forward pass keeps only the
    input of each layer, and the backward pass recomputes the layer."""


class SizedModel(Schema):
    """Sizes that models from other libraries share with the Transformer."""

    encoder_layers: Count = 2
    """Layers of the encoder."""
    decoder_layers: Count = 2
    """Layers of the decoder."""
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements."""
    d_ff: Annotated[int, Unit("elements")] = Field(default=512, ge=1, le=1_048_576)
    """Width of the feed-forward layers, in elements."""
    heads: Count = 4
    """Attention heads; must divide d_model."""
    dropout: Fraction = 0.1
    """Probability that an activation is dropped in training."""
    tied_embeddings: bool = True
    """Whether the source embedding, target embedding and output projection share one matrix."""


class TorchTransformer(SizedModel):
    """torch.nn.Transformer between the Transformer's embeddings and projection."""

    kind: Literal["torch_nn"]
    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before or after each sub-layer."""


class HuggingFace(SizedModel):
    """A MarianMT model of the transformers library, with random weights."""

    kind: Literal["huggingface"]


class ImportedModel(SizedModel):
    """A user-defined model."""

    kind: Literal["import"]
    factory: str = Field(pattern=FACTORY_PATTERN, max_length=500, examples=["my_module:build"])
    """package.module:function that takes this section and the vocabulary and returns the model."""
    options: dict[str, bool | Whole | Decimal | str] = Field(default_factory=dict)
    """Additional arguments for the function."""


AnyModel = Annotated[
    Transformer | TorchTransformer | HuggingFace | ImportedModel, Field(discriminator="kind")
]
