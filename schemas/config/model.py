"""Models: what ``transformer_core.models`` builds."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import FACTORY_PATTERN, Count, Decimal, Fraction, Schema, Whole


class ReferenceAttention(Schema):
    """Explicit softmax(QK^T)V, as in the Annotated Transformer."""

    kind: Literal["reference"]


AttentionBackend = Literal["auto", "flash", "efficient", "cudnn", "math"]
"""Which of CUDA's kernels computes attention."""


class SdpaAttention(Schema):
    """torch's fused scaled-dot-product attention."""

    kind: Literal["sdpa"] = "sdpa"
    backend: AttentionBackend = "auto"
    """Kernel on CUDA. auto takes flash where it can (16 bits, no mask), else efficient, else math,
    and never cuDNN's, which torch would take in validation and certificates, and another with
    dropout. A kernel that is named is taken or the run is unsupported: flash takes no mask, so it
    wants tokens: unpadded, in validation too; decoding, which pads, takes auto in its place."""


class PublishedAttention(Schema):
    """Explicit softmax(QK^T)V as the Annotated Transformer has it: the scores scaled after the
    product, and masks of padding and of what comes later made once for each batch."""

    kind: Literal["published"]


class FusedSoftmaxAttention(Schema):
    """Explicit softmax(QK^T)V, with mask, softmax and dropout of the scores in one compiled loop on
    a CPU, in 32 bits or bfloat16; masks of dropout are made anew in the backward pass. Elsewhere,
    and where nothing is dropped, as reference."""

    kind: Literal["fused_softmax"]


AnyAttention = Annotated[
    ReferenceAttention | SdpaAttention | PublishedAttention | FusedSoftmaxAttention,
    Field(discriminator="kind"),
]


class TorchDropout(Schema):
    """torch's own dropout: on a CPU, a floating-point number is drawn for every element."""

    kind: Literal["torch"]


class SharedDraws(Schema):
    """Four elements share a random number of 64 bits on a CPU; elsewhere torch's own dropout."""

    kind: Literal["shared_draws"] = "shared_draws"


class FusedDropout(Schema):
    """On a CPU in 32 bits or bfloat16, one compiled loop draws, drops, and adds the residual or
    takes the ReLU; masks are made anew in the backward pass. Elsewhere torch's own."""

    kind: Literal["fused"]


AnyDropout = Annotated[TorchDropout | SharedDraws | FusedDropout, Field(discriminator="kind")]


class FusedNorm(Schema):
    """torch's layer normalization: one kernel."""

    kind: Literal["fused"] = "fused"

    by_sample_deviation: ClassVar = False


class PublishedNorm(Schema):
    """Layer normalization step by step as the Annotated Transformer has it: divided by the sample's
    standard deviation (of d - 1 degrees of freedom) plus eps, not by the root of variance plus eps,
    so that its result is smaller by sqrt((d - 1) / d)."""

    kind: Literal["published"]

    by_sample_deviation: ClassVar = True


AnyNorm = Annotated[FusedNorm | PublishedNorm, Field(discriminator="kind")]


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
    """As published in the original study: streams made anew and the whole device synchronised
    before and after, at every call."""


class LayoutQkv(Schema):
    """One matrix product whose result is split in one of the two layouts of the original study."""

    kind: Literal["layout"]
    outermost: Literal["batch", "qkv"]
    """(b, qkv, h, n, d) with the batch outermost, or (qkv, b, h, n, d)."""


AnyQkv = Annotated[SeparateQkv | FusedQkv | StreamsQkv | LayoutQkv, Field(discriminator="kind")]


class PaddedTokens(Schema):
    """Padding is computed like any token, and counts nothing in the loss."""

    kind: Literal["padded"] = "padded"


class UnpaddedTokens(Schema):
    """The real tokens of a batch in one list: padding is not computed. Attention takes the
    sentences in blocks of similar lengths, each padded to its longest."""

    kind: Literal["unpadded"]
    blocks: Count = 4
    """Blocks of a batch: more of them pad less, in smaller matrix products."""
    row_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """The list is filled up to a multiple of this, in tokens: few distinct shapes, so that kernels
    that are made for a shape (oneDNN's in bfloat16) are made once, at the cost of a little
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
    """Whether source embedding, target embedding and output projection are one matrix."""
    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before (Annotated Transformer) or after (the paper) each sub-layer."""
    attention: AnyAttention = SdpaAttention()
    """How attention is computed."""
    qkv: AnyQkv = FusedQkv()
    """How queries, keys and values are projected."""
    memory_products: Literal["per_layer", "together"] = "per_layer"
    """Whether each decoder layer projects the encoder's output into its keys and values by itself,
    or one matrix product does it for all layers before the first (together), which needs the
    weights of all layers at once: not with FSDP."""
    dropout_method: AnyDropout = SharedDraws()
    """How activations are dropped."""
    norm_method: AnyNorm = FusedNorm()
    """How layer normalization is computed."""
    tokens: AnyTokens = PaddedTokens()
    """What is computed of padding in training."""
    residual: ResidualFormat = "as_computed"
    """Number format of the residual stream: that of the weights (32 bits under autocast), or
    bfloat16, which halves what is read and written between matrix products; this needs
    training.precision bf16 or bf16_weights."""
    compile: Compiling = "none"
    """torch.compile in training: with layers, once for each kind of layer and any lengths, which
    takes a minute or two on a CPU and is kept on disk; it needs a C++ compiler. In one process or
    with DDP, on padded rows. With graphs, on CUDA, each layer is also recorded as a CUDA graph and
    launched at once, for every shape that comes: batching.rows.width_multiple keeps shapes few. In
    one process, without accumulation."""
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing (arXiv 1604.06174): with layers, the forward pass keeps the input
    of each layer only, and the backward pass computes the layer a second time."""


class SizedModel(Schema):
    """The sizes that models of other libraries share with the Transformer."""

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
    """Whether source embedding, target embedding and output projection are one matrix."""


class TorchTransformer(SizedModel):
    """torch.nn.Transformer between the embeddings and projection of the Transformer."""

    kind: Literal["torch_nn"]
    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before or after each sub-layer."""


class HuggingFace(SizedModel):
    """A MarianMT model of the transformers library, with random weights."""

    kind: Literal["huggingface"]


class ImportedModel(SizedModel):
    """A model of the user's own."""

    kind: Literal["import"]
    factory: str = Field(pattern=FACTORY_PATTERN, max_length=500, examples=["my_module:build"])
    """package.module:function that takes this section and the vocabulary and gives the model."""
    options: dict[str, bool | Whole | Decimal | str] = Field(default_factory=dict)
    """What else the function wants to know."""


AnyModel = Annotated[
    Transformer | TorchTransformer | HuggingFace | ImportedModel, Field(discriminator="kind")
]
