"""Models: what ``transformer_core.model`` builds."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Fraction, Schema


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


AnyQkv = Annotated[SeparateQkv | FusedQkv, Field(discriminator="kind")]


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


AnyModel = Transformer
