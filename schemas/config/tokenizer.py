"""Tokenizers: trained on the corpus, or already existing."""

from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import BeforeValidator, Field

from schemas.base import Pairs, PathText, Schema


class Tokenizer(Schema):
    """One byte-pair encoding for both languages."""

    kind: Literal["bpe"] = "bpe"
    vocabulary: Annotated[int, Unit("tokens")] = Field(default=2_000, ge=300, le=1_000_000)
    """Size of the joint vocabulary, special tokens included, in tokens."""
    sample_pairs: Pairs = 1_000_000
    """Maximum number of training pairs, evenly spaced, used to train the tokenizer."""


class TokenizerFile(Schema):
    """An existing tokenizer, in the format of the Hugging Face library."""

    kind: Literal["file"]
    path: PathText = Field(examples=["data/tokenizer.json"])
    """Path of its tokenizer.json."""
    vocabulary: Annotated[int, Unit("tokens")] = Field(ge=5, le=1_000_000, examples=[32_000])
    """Vocabulary size in tokens, including padding, begin, end and unknown, which are added if
    missing."""


class SentencePieceModel(Schema):
    """An existing SentencePiece model, of type unigram or bpe."""

    kind: Literal["sentencepiece"]
    path: PathText = Field(examples=["data/sentencepiece.model"])
    """Path of its .model file."""
    vocabulary: Annotated[int, Unit("tokens")] = Field(ge=5, le=1_000_000, examples=[32_000])
    """Vocabulary size in tokens, including padding, begin, end and unknown, which are added if
    missing."""


def _trained_unless_said(section: Any) -> Any:
    return {"kind": "bpe"} | section if isinstance(section, dict) else section


AnyTokenizer = Annotated[
    Tokenizer | TokenizerFile | SentencePieceModel,
    Field(discriminator="kind"),
    BeforeValidator(_trained_unless_said),
]
