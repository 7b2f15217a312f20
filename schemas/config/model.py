"""Models: encoder-decoders for translation, decoder-only language models."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Unit
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from schemas.base import (
    FACTORY_PATTERN,
    Count,
    Decimal,
    Fraction,
    Schema,
    Seed,
    Whole,
    omitted,
    refusal,
)
from transformer_core.techniques.liger import Kernels
from transformer_core.techniques.recomputation import Recomputed
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
    otherwise math, but never cuDNN's, which torch would use in validation, but not with dropout.
    A named kernel is used or the run is unsupported: flash takes no mask, so it needs tokens:
    unpadded, in validation too; decoding, which pads, uses auto instead."""


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
    """As published in the original study: every call creates new streams and synchronizes the
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
    sentences, or texts, in blocks of similar lengths, each padded to its longest."""

    kind: Literal["unpadded"]
    blocks: Count = 4  # blocks per batch: more blocks mean less padding but smaller matrix products
    row_multiple: Annotated[int, Unit("tokens")] = Field(default=1, ge=1, le=65_536)
    """The list is padded to a multiple of this, in tokens. Fewer distinct shapes mean that
    kernels built for one shape (oneDNN's in bfloat16) are built once, at the cost of a little
    padding."""


AnyTokens = Annotated[PaddedTokens | UnpaddedTokens, Field(discriminator="kind")]


ResidualFormat = Literal["as_computed", "bf16"]
Compiling = Literal["none", "layers", "autotuned", "graphs"]
KeptShare = Annotated[float, Field(ge=0.0, le=1.0)]


class SizedModel(Schema):
    """Sizes of encoder-decoders."""

    encoder_layers: Count = 2  # layers of the encoder
    decoder_layers: Count = 2  # layers of the decoder
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements."""
    d_ff: Annotated[int, Unit("elements")] = Field(default=512, ge=1, le=1_048_576)
    """Width of the feed-forward layers, in elements."""
    heads: Count = 4  # attention heads; must divide d_model
    dropout: Fraction = 0.1  # probability that an activation is dropped in training
    tied_embeddings: bool = True
    """Whether the source embedding, target embedding and output projection share one matrix."""


class Transformer(SizedModel):
    """The encoder-decoder of "Attention Is All You Need" (arXiv 1706.03762)."""

    kind: Literal["transformer"] = "transformer"
    norm: Literal["pre", "post"] = "pre"
    """Layer normalization before (Annotated Transformer) or after (original paper) each
    sub-layer."""
    attention: AnyAttention = SdpaAttention()  # how attention is computed
    qkv: AnyQkv = FusedQkv()  # how queries, keys and values are projected
    memory_products: Literal["per_layer", "together"] = "per_layer"
    """Whether each decoder layer projects the encoder's output to keys and values itself, or one
    matrix product does so for all layers up front (together). The latter needs the weights of
    all layers at once: not with FSDP."""
    dropout_method: AnyDropout = SharedDraws()  # how activations are dropped
    norm_method: AnyNorm = FusedNorm()  # how layer normalization is computed
    tokens: AnyTokens = PaddedTokens()  # how padding is treated in training
    residual: ResidualFormat = "as_computed"
    """Number format of the residual stream: that of the weights (32 bits under autocast), or
    bfloat16, which halves memory traffic between matrix products; needs training.precision bf16
    or bf16_weights."""
    compile: Compiling = "none"
    """torch.compile in training: with layers, compiled once per kind of layer for any lengths,
    which takes a minute or two on a CPU and is cached on disk; needs a C++ compiler. In one
    process or with DDP, on padded rows. With autotuned, torch also tries kernels for matrix products
    for each shape (max-autotune), which takes longer. With graphs, on CUDA, each layer is also
    recorded as a CUDA graph for every shape and launched as a whole; batching.rows.width_multiple
    limits the number of shapes. In one process, without accumulation."""
    checkpoint: Recomputed = "none"
    """Activation checkpointing (arXiv 1604.06174): the backward pass recomputes what the forward
    pass does not keep. With layers only the input of each layer is kept, with alternate that of
    every second one, with products also the results of matrix products and, without dropout,
    fused attention."""
    kept_share: KeptShare = omitted(1.0)
    """Share of the activations of compiled layers that is kept (torch's
    activation_memory_budget): torch chooses which are recomputed; needs compile: layers."""


class TorchTransformer(SizedModel):
    """torch.nn.Transformer between the Transformer's embeddings and projection."""

    kind: Literal["torch_nn"]
    norm: Literal["pre", "post"] = "pre"  # layer normalization before or after each sub-layer


MARIAN_POSITIONS = 1024  # length of MarianMT's table of positions: the library's default


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


Elements = Annotated[int, Field(ge=1, le=1_048_576), Unit("elements")]


class RotaryPositions(Schema):
    """Queries and keys are rotated by angles that grow with position (arXiv 2104.09864)."""

    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, ge=2.0, le=1e12)
    """Wavelengths grow geometrically from 2 pi to about 2 pi times this."""


class LearnedPositions(Schema):
    """A trained vector per position, added to the embedding, as in GPT-2."""

    kind: Literal["learned"]
    length: Annotated[int, Field(ge=1, le=16_777_216), Unit("tokens")] = 1_024
    """Number of positions; no row may be longer."""


class SinusoidalPositions(Schema):
    """Fixed sines and cosines, added to the embedding times sqrt(d_model) (arXiv 1706.03762, 3.4
    and 3.5)."""

    kind: Literal["sinusoidal"]


AnyPositions = Annotated[
    RotaryPositions | LearnedPositions | SinusoidalPositions, Field(discriminator="kind")
]


class RmsNorm(Schema):
    """Division by the root mean square (arXiv 1910.07467); no mean, no bias."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(default=1e-6, ge=1e-30, le=1.0)  # added to the mean square


class LayerNorm(Schema):
    """Layer normalization (arXiv 1607.06450)."""

    kind: Literal["layer"]
    eps: float = Field(default=1e-5, ge=1e-30, le=1.0)  # added to the variance


AnyDecoderNorm = Annotated[RmsNorm | LayerNorm, Field(discriminator="kind")]


class SwiGlu(Schema):
    """A linear map times the SiLU of another (arXiv 2002.05202): three matrices instead of two."""

    kind: Literal["swiglu"] = "swiglu"


class Gelu(Schema):
    """Two linear maps with a GELU between them (arXiv 1606.08415)."""

    kind: Literal["gelu"]
    approximate: Literal["none", "tanh"] = "tanh"
    """Exact, or approximated by a hyperbolic tangent, as in GPT-2."""


class Relu(Schema):
    """Two linear maps with a ReLU between them."""

    kind: Literal["relu"]


AnyFeedForward = Annotated[SwiGlu | Gelu | Relu, Field(discriminator="kind")]


def divides(whole: str) -> AfterValidator:
    """Refuses a number that does not divide that of an earlier field, ``whole``."""

    def check(part: int | None, info: ValidationInfo) -> int | None:
        value = info.data.get(whole)
        if part is not None and value is not None and value % part:
            near = [n for n in range(1, min(value, 1_000) + 1) if value % n == 0]
            remedy = f"use one of {', '.join(map(str, near[-6:]))}, or change {whole}"
            raise refusal(f"does not divide {whole} = {value}", remedy)
        return part

    return AfterValidator(check)


class DecoderOnly(Schema):
    """A decoder-only model that normalizes the input of each sub-layer."""

    kind: Literal["decoder_only"] = "decoder_only"
    layers: Count = 4  # number of layers
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements."""
    d_ff: Elements = 512  # width of the feed-forward layers, in elements
    heads: Annotated[Count, divides("d_model")] = 4  # query heads; must divide d_model
    kv_heads: Annotated[Count | None, divides("heads")] = Field(default=None, examples=[2])
    """Key and value heads, each shared by the same number of query heads (arXiv 2305.13245);
    must divide heads. Null: as many as heads."""
    dropout: Fraction = 0.0
    """Probability that an activation or an attention weight is dropped in training."""
    tied_embeddings: bool = True  # whether the embedding and the output projection share one matrix
    bias: bool = False
    """Whether linear maps and layer normalizations have a bias. The output projection never
    does."""
    positions: AnyPositions = RotaryPositions()  # how positions are encoded
    norm: AnyDecoderNorm = RmsNorm()  # normalization before each sub-layer and after the last layer
    feed_forward: AnyFeedForward = SwiGlu()  # feed-forward layers
    attention: Annotated[
        ReferenceAttention | SdpaAttention | FusedSoftmaxAttention, Field(discriminator="kind")
    ] = SdpaAttention()
    """How attention is computed."""
    qkv: Annotated[SeparateQkv | FusedQkv | StreamsQkv, Field(discriminator="kind")] = FusedQkv()
    """How queries, keys and values are projected."""
    dropout_method: AnyDropout = SharedDraws()  # how activations are dropped
    tokens: AnyTokens = omitted(PaddedTokens())
    """Rows of texts with a mask (padded), or the texts one after the other in a list (unpadded):
    attention then takes each text by itself, in blocks of similar lengths or, with the flash
    backend on a GPU, at its own length. Nothing is computed between texts."""
    kernels: Kernels = omitted("torch")
    """Kernels of RMS normalization, SwiGLU and rotary positions: torch's operations, or the fused
    kernels of the library Liger, on a GPU."""
    residual: ResidualFormat = "as_computed"
    """Number format of the residual stream, as for the Transformer."""
    compile: Compiling = "none"
    """torch.compile in training, as for the Transformer."""
    initial_std: float = Field(default=0.02, gt=0, le=10.0)
    """Standard deviation of the initial weights; maps that write to the residual stream use a
    value smaller by sqrt(2 layers), as in GPT-2."""
    checkpoint: Recomputed = "none"  # activation checkpointing, as for the Transformer
    kept_share: KeptShare = omitted(1.0)
    """Share of the activations of compiled layers that is kept, as for the Transformer."""

    @field_validator("positions")
    @classmethod
    def _fits_the_heads(cls, positions: AnyPositions, info: ValidationInfo) -> AnyPositions:
        d_model, heads = info.data.get("d_model"), info.data.get("heads")
        width = d_model // heads if d_model and heads else 0
        odd = None
        if isinstance(positions, RotaryPositions) and width % 2:
            odd = f"d_model / heads = {width}"
        elif isinstance(positions, SinusoidalPositions) and d_model and d_model % 2:
            odd = f"d_model = {d_model}"
        if odd is not None:
            raise refusal(
                f"come in pairs, but {odd} is odd",
                "choose an even d_model; with rotary, d_model / heads must be even too",
            )
        return positions


class HuggingFaceCausal(Schema):
    """A causal language model of the transformers library, with random weights."""

    kind: Literal["huggingface_causal"]
    architecture: str = Field(pattern=r"^[a-z][a-z0-9_\-.]*$", max_length=64, examples=["gpt2"])
    """The library's name for the model type: gpt2, llama, qwen3, ..."""
    layers: Count = 4  # layers: the library's num_hidden_layers
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements: hidden_size."""
    d_ff: Elements = 512
    """Width of the feed-forward layers, in elements: intermediate_size, or n_inner."""
    heads: Count = 4
    """Attention heads: num_attention_heads; must divide d_model unless options set head_dim."""
    dropout: Fraction = 0.0
    """Probability that an activation is dropped in training, for every kind of dropout that the
    model type has."""
    tied_embeddings: bool = True
    """Whether the embedding and the output projection share one matrix: tie_word_embeddings."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The library's implementation of attention: torch's fused one, or step by step."""
    options: dict[str, bool | Whole | Decimal | str] = Field(
        default_factory=dict, examples=[{"num_key_value_heads": 2}]
    )
    """Any other settings of the library's configuration, by the library's names."""


AnyLanguageModel = Annotated[DecoderOnly | HuggingFaceCausal, Field(discriminator="kind")]


class Sampling(Schema):
    """Sampling of text, instead of taking the most probable token."""

    temperature: float = Field(default=0.8, gt=0, le=100.0)
    """Divides the logits: below 1, probable tokens become more probable."""
    top_k: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Number of most probable tokens to draw from; null for all."""
    seed: Seed = 1  # seed of the draws
