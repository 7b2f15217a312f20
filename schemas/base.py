"""The base class and the small field types that all schemas share."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Schema(BaseModel):
    """A checked, immutable record. Field descriptions are the docstrings below the fields."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,  # JSON has neither: a file that holds one could not be read back
    )

    def canonical_json(self) -> str:
        """The one JSON text of this record: sorted keys, no spaces, every default written out."""
        return json.dumps(
            self.model_dump(mode="json"),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )

    def digest(self) -> str:
        """Hexadecimal SHA-256 of :meth:`canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Lay ``change`` over ``base``, section by section.

    A section whose ``kind`` changes is replaced as a whole: the fields of one kind mean nothing to
    another.
    """
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            same_kind = value.get("kind", old.get("kind")) == old.get("kind")
            merged[key] = merge(old, value) if same_kind else value
        else:
            merged[key] = value
    return merged


NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
"""A name that is also a folder name: lower-case letters, digits, underscores."""

Count = Annotated[int, Field(ge=1)]
"""A whole number, one or more."""

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A number from 0 up to, not including, 1."""

Seconds = Annotated[float, Field(ge=0.0)]
"""A duration in seconds."""
