"""Language models: what ``transformer_core.models`` builds of decoders alone."""

from typing import Annotated, Literal

from annotated_types import Unit
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from schemas.base import Count, Decimal, Fraction, Schema, Seed, Whole
from schemas.config.model import (
    AnyDropout,
    Compiling,
    FusedQkv,
    FusedSoftmaxAttention,
    ReferenceAttention,
    ResidualFormat,
    SdpaAttention,
    SeparateQkv,
    SharedDraws,
    StreamsQkv,
)

Elements = Annotated[int, Field(ge=1, le=1_048_576), Unit("elements")]


class RotaryPositions(Schema):
    """Queries and keys are turned by angles that grow with their place (arXiv 2104.09864)."""

    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, ge=2.0, le=1e12)
    """Wavelengths grow geometrically from 2 pi to about 2 pi times this."""


class LearnedPositions(Schema):
    """A trained vector for each place, added to the embedding, as in GPT-2."""

    kind: Literal["learned"]
    length: Annotated[int, Field(ge=1, le=16_777_216), Unit("tokens")] = 1_024
    """Places that there are: no row may be longer."""


class SinusoidalPositions(Schema):
    """Fixed sines and cosines, added to the embedding times sqrt(d_model) (arXiv 1706.03762, 3.4
    and 3.5)."""

    kind: Literal["sinusoidal"]


AnyPositions = Annotated[
    RotaryPositions | LearnedPositions | SinusoidalPositions, Field(discriminator="kind")
]


class RmsNorm(Schema):
    """Divided by the root of the mean square (arXiv 1910.07467); no mean, no bias."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(default=1e-6, ge=1e-30, le=1.0)
    """Added to the mean square."""


class LayerNorm(Schema):
    """Layer normalization (arXiv 1607.06450)."""

    kind: Literal["layer"]
    eps: float = Field(default=1e-5, ge=1e-30, le=1.0)
    """Added to the variance."""


AnyDecoderNorm = Annotated[RmsNorm | LayerNorm, Field(discriminator="kind")]


class SwiGlu(Schema):
    """A linear map times the SiLU of another (arXiv 2002.05202): three matrices in place of two."""

    kind: Literal["swiglu"] = "swiglu"


class Gelu(Schema):
    """Two linear maps with a GELU between them (arXiv 1606.08415)."""

    kind: Literal["gelu"]
    approximate: Literal["none", "tanh"] = "tanh"
    """Exact, or by a hyperbolic tangent, as in GPT-2."""


class Relu(Schema):
    """Two linear maps with a ReLU between them."""

    kind: Literal["relu"]


AnyFeedForward = Annotated[SwiGlu | Gelu | Relu, Field(discriminator="kind")]


class DecoderOnly(Schema):
    """A decoder alone, each layer of which normalizes what goes into its sub-layers."""

    kind: Literal["decoder_only"] = "decoder_only"
    layers: Count = 4
    """Layers."""
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements."""
    d_ff: Elements = 512
    """Width of the feed-forward layers, in elements."""
    heads: Count = 4
    """Heads of the queries; must divide d_model."""
    kv_heads: Count | None = Field(default=None, examples=[2])
    """Heads of keys and values, each of which serves as many heads of queries
    (arXiv 2305.13245); must divide heads. Null: as many as heads."""
    dropout: Fraction = 0.0
    """Probability that an activation or an attention weight is dropped in training."""
    tied_embeddings: bool = True
    """Whether embedding and output projection are one matrix."""
    bias: bool = False
    """Whether linear maps and layer normalizations have a bias. The output projection has none."""
    positions: AnyPositions = RotaryPositions()
    """How the model knows where a token stands."""
    norm: AnyDecoderNorm = RmsNorm()
    """Normalization before each sub-layer and after the last layer."""
    feed_forward: AnyFeedForward = SwiGlu()
    """Feed-forward layers."""
    attention: Annotated[
        ReferenceAttention | SdpaAttention | FusedSoftmaxAttention, Field(discriminator="kind")
    ] = SdpaAttention()
    """How attention is computed."""
    qkv: Annotated[SeparateQkv | FusedQkv | StreamsQkv, Field(discriminator="kind")] = FusedQkv()
    """How queries, keys and values are projected."""
    dropout_method: AnyDropout = SharedDraws()
    """How activations are dropped."""
    residual: ResidualFormat = "as_computed"
    """Number format of the residual stream: see the same of the Transformer."""
    compile: Compiling = "none"
    """torch.compile in training: with layers, once for all layers and any lengths, which takes a
    minute or two on a CPU and is kept on disk; it needs a C++ compiler. In one process or with
    DDP. With graphs, on CUDA, each layer is also recorded as a CUDA graph and launched at once. In
    one process, without accumulation."""
    initial_std: float = Field(default=0.02, gt=0, le=10.0)
    """Standard deviation of the initial weights; that of the maps whose output is added to the
    residual stream is smaller by sqrt(2 layers), as in GPT-2."""
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing (arXiv 1604.06174): with layers, the forward pass keeps the input
    of each layer only, and the backward pass computes the layer a second time."""

    @field_validator("heads")
    @classmethod
    def _divides_the_width(cls, heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model")
        if d_model is not None and d_model % heads:
            raise _no_divisor("d_model", d_model)
        return heads

    @field_validator("kv_heads")
    @classmethod
    def _divides_the_heads(cls, kv_heads: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if kv_heads is not None and heads is not None and heads % kv_heads:
            raise _no_divisor("heads", heads)
        return kv_heads

    @field_validator("positions")
    @classmethod
    def _fits_the_heads(cls, positions: AnyPositions, info: ValidationInfo) -> AnyPositions:
        d_model, heads = info.data.get("d_model"), info.data.get("heads")
        width = d_model // heads if d_model and heads else 0
        if (isinstance(positions, RotaryPositions) and width % 2) or (
            isinstance(positions, SinusoidalPositions) and d_model and d_model % 2
        ):
            raise PydanticCustomError(
                "odd_width",
                "come in pairs, but there is an odd number of elements",
                {"remedy": "take a d_model that is even, for rotary also when divided by heads"},
            )
        return positions


class HuggingFaceCausal(Schema):
    """A causal language model of the transformers library, with random weights."""

    kind: Literal["huggingface_causal"]
    architecture: str = Field(pattern=r"^[a-z][a-z0-9_\-.]*$", max_length=64, examples=["gpt2"])
    """The library's name of the type of model: gpt2, llama, qwen3, ..."""
    layers: Count = 4
    """Layers: the library's num_hidden_layers."""
    d_model: Annotated[int, Unit("elements")] = Field(default=128, ge=2, le=65_536)
    """Width of the residual stream, in elements: hidden_size."""
    d_ff: Elements = 512
    """Width of the feed-forward layers, in elements: intermediate_size, or n_inner."""
    heads: Count = 4
    """Attention heads: num_attention_heads."""
    dropout: Fraction = 0.0
    """Probability that an activation is dropped in training: of every kind of dropout that the
    type of model has."""
    tied_embeddings: bool = True
    """Whether embedding and output projection are one matrix: tie_word_embeddings."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The library's implementation of attention: torch's fused one, or step by step."""
    options: dict[str, bool | Whole | Decimal | str] = Field(
        default_factory=dict, examples=[{"num_key_value_heads": 2}]
    )
    """Anything else of the library's configuration, by its own names."""


AnyLanguageModel = Annotated[DecoderOnly | HuggingFaceCausal, Field(discriminator="kind")]


class Sampling(Schema):
    """Text that is drawn, not the most probable."""

    temperature: float = Field(default=1.0, gt=0, le=100.0)
    """Logits are divided by this: below 1, probable tokens become more probable."""
    top_k: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Tokens to draw from, the most probable ones; null for all."""
    seed: Seed = 1
    """Seed of the draws."""


def _no_divisor(name: str, value: int) -> PydanticCustomError:
    near = [n for n in range(1, min(value, 1_000) + 1) if value % n == 0]
    remedy = f"take one of {', '.join(map(str, near[-6:]))}, or change {name}"
    return PydanticCustomError(
        "no_divisor", "does not divide {whole}", {"whole": f"{name} = {value}", "remedy": remedy}
    )
