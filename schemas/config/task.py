"""Tasks: what is trained on a corpus, and how quality is measured."""

from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema
from schemas.config.decoder_only import Sampling
from schemas.config.script import ImportedTask, ScriptTask

MOST_CHARACTERS = 10_000_000
"""Default maximum length of a text: long ones are cut into rows."""


class Translation(Schema):
    """Sentence pairs: an encoder-decoder learns to produce the target for a source, scored by
    BLEU."""

    kind: Literal["translation"] = "translation"


class LanguageModel(Schema):
    """Texts: a decoder learns to predict the next token, scored by loss, perplexity and bits per
    byte."""

    kind: Literal["language_model"]
    context: Annotated[int, Unit("tokens")] = Field(default=256, ge=2, le=1_000_000)
    """Tokens per row. Rows hold consecutive texts, each with an end token; a text that does not
    fit continues in the next row, which cannot see the earlier part."""
    texts: Literal["masked", "joined"] = "masked"
    """Whether attention stays within a text (masked) or spans the whole row (joined), which
    needs no mask. Either way every text begins with the same token."""
    prompt: Annotated[int, Unit("tokens")] = Field(default=16, ge=1, le=1_000_000)
    """Leading tokens of test texts that the trained model continues, for the report; must be
    fewer than context."""
    continuation: Annotated[int, Unit("tokens")] = Field(default=32, ge=1, le=1_000_000)
    """Maximum tokens in a continuation; with the prompt at most context."""
    sampling: Sampling = Sampling(temperature=0.8)
    """How tokens are sampled for the drawn continuations."""


AnyTask = Annotated[
    Translation | LanguageModel | ImportedTask | ScriptTask, Field(discriminator="kind")
]


def defaults_of(task: Any) -> dict[str, dict[str, Any]]:
    """The task-specific defaults for other sections of a study.

    ``task`` is the section as written; its schema reports any errors.
    """
    if isinstance(task, Schema):
        task = task.model_dump()
    if not isinstance(task, dict) or task.get("kind") != "language_model":
        return {}
    context = task.get("context", LanguageModel.model_fields["context"].default)
    return {
        "corpus": {"kind": "grammar_documents"},
        "filter": {"max_characters": MOST_CHARACTERS, "max_tokens": context},
        "model": {"kind": "decoder_only"},
        "training": {"label_smoothing": 0.0},
    }
