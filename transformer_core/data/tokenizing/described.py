"""A tokenizer with what its configuration says, which is written out and read once: a large
vocabulary takes its time."""

import json
from dataclasses import dataclass
from typing import Any, Self

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Described:
    """A tokenizer, and its configuration at this moment."""

    tokenizer: Tokenizer
    settings: dict[str, Any]
    """What tokenizer.json has."""
    vocabulary: dict[str, int]
    """Ids of all tokens, added ones included."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The description of ``tokenizer``."""
        return cls(tokenizer, json.loads(tokenizer.to_str()), tokenizer.get_vocab())

    @property
    def pre_tokenizer(self) -> dict[str, Any]:
        """Settings of the stage that cuts a text; of the type None where there is none."""
        return self.settings["pre_tokenizer"] or {"type": None}

    @property
    def normalizer(self) -> str | None:
        """Type of what changes a text before that, or None."""
        return (self.settings["normalizer"] or {"type": None})["type"]

    def without_added_tokens(self) -> Tokenizer:
        """A tokenizer with the same model and the same stages before it, without a copy of the
        vocabulary."""
        other = Tokenizer(self.tokenizer.model)
        for stage in ("normalizer", "pre_tokenizer"):
            if self.settings[stage] is not None:
                setattr(other, stage, getattr(self.tokenizer, stage))
        return other


def pre_tokenizer_of(settings: dict[str, Any]) -> Any:
    """The stage of such settings, as an object for :class:`tokenizers.Tokenizer`."""
    empty = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return Tokenizer.from_str(
        json.dumps({"version": "1.0", "model": empty, "pre_tokenizer": settings})
    ).pre_tokenizer
