"""Models: what ``transformer_core.model`` builds."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import FACTORY_PATTERN, Count, Fraction, Schema


class ReferenceAttention(Schema):
    """Explicit softmax(QK^T)V, as in the Annotated Transformer."""

    kind: Literal["reference"]


class SdpaAttention(Schema):
    """torch's fused scaled-dot-product attention."""

    kind: Literal["sdpa"] = "sdpa"


AnyAttention = Annotated[ReferenceAttention | SdpaAttention, Field(discriminator="kind")]


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


class Transformer(Schema):
    """The encoder-decoder of "Attention Is All You Need" (arXiv 1706.03762)."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: Count = 2
    """Layers of the encoder."""
    decoder_layers: Count = 2
    """Layers of the decoder."""
    d_model: Count = 128
    """Width of the residual stream, in elements."""
    d_ff: Count = 512
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
    checkpoint: Literal["none", "layers"] = "none"
    """Activation checkpointing (arXiv 1604.06174): with layers, the forward pass keeps the input
    of each layer only, and the backward pass computes the layer a second time."""


class SizedModel(Schema):
    """The sizes that models of other libraries share with the Transformer."""

    encoder_layers: Count = 2
    """Layers of the encoder."""
    decoder_layers: Count = 2
    """Layers of the decoder."""
    d_model: Count = 128
    """Width of the residual stream, in elements."""
    d_ff: Count = 512
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
    factory: str = Field(pattern=FACTORY_PATTERN)
    """package.module:function that takes this section and the vocabulary and gives the model."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What else the function wants to know."""


AnyModel = Annotated[
    Transformer | TorchTransformer | HuggingFace | ImportedModel, Field(discriminator="kind")
]
