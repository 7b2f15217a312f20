"""Tasks: what is trained on a corpus, and how quality is judged."""

from typing import Annotated, Any, Literal

from annotated_types import Unit
from pydantic import Field

from schemas.base import Schema
from schemas.config.decoder_only import Sampling
from schemas.config.own_training import ImportedTask
from schemas.config.script import ScriptTask

MOST_CHARACTERS = 10_000_000
"""The longest text that is kept where nothing else is said: long ones are cut into rows."""


class Translation(Schema):
    """Sentence pairs: an encoder-decoder learns to give the target of a source, judged by BLEU."""

    kind: Literal["translation"] = "translation"


class LanguageModel(Schema):
    """Texts: a decoder learns to give the next token, judged by loss, perplexity and bits per
    byte."""

    kind: Literal["language_model"]
    context: Annotated[int, Unit("tokens")] = Field(default=256, ge=2, le=1_000_000)
    """Tokens of a row. Texts stand in rows one after the other, each with an end; what does not fit
    into a row goes on in the next one, which does not see what was before."""
    texts: Literal["masked", "joined"] = "masked"
    """Whether attention keeps within a text (masked), or goes over all of a row (joined), which
    needs no mask. Either way every text begins with the same token."""
    prompt: Annotated[int, Unit("tokens")] = Field(default=16, ge=1, le=1_000_000)
    """Tokens at the beginning of test texts that the trained model goes on with, for the report;
    fewer than context."""
    continuation: Annotated[int, Unit("tokens")] = Field(default=32, ge=1, le=1_000_000)
    """Most tokens that it adds; with the prompt at most context."""
    sampling: Sampling = Sampling(temperature=0.8)
    """How tokens are drawn where they are not the most probable ones."""


AnyTask = Annotated[
    Translation | LanguageModel | ImportedTask | ScriptTask, Field(discriminator="kind")
]


def defaults_of(task: Any) -> dict[str, dict[str, Any]]:
    """What a task has as defaults in other sections of a study, where it has its own.

    ``task`` is the section as it was written; what is wrong with it, its schema says.
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
