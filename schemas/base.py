"""The base class and the small field types that all schemas share."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Schema(BaseModel):
    """A checked, immutable record. Fields are described by the docstrings below them, which only
    :mod:`schemas.generate` reads: to find them in the sources takes as long as all else that an
    import of schemas does."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # most processes need few of them
        validate_default=True,
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


Kinds = Mapping[tuple[str, ...], Mapping[str, frozenset[str]]]
"""The fields of each kind of a section, by the path of the section."""


def kinds_of(
    model: type[Schema], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], dict[str, frozenset[str]]]:
    """The :data:`Kinds` of all sections below ``model``."""
    found: dict[tuple[str, ...], dict[str, frozenset[str]]] = {}
    for name, field in model.model_fields.items():
        place = (*path, name)
        for section in _sections(field.annotation):
            if "kind" in section.model_fields:
                (kind,) = get_args(section.model_fields["kind"].annotation)
                found.setdefault(place, {})[kind] = frozenset(section.model_fields)
            for below, kinds in kinds_of(section, place).items():
                found.setdefault(below, {}).update(kinds)
    return found


def _sections(annotation: Any) -> Iterator[type[Schema]]:
    """The schemas that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, Schema):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def merge(
    base: dict[str, Any],
    change: dict[str, Any],
    kinds: Kinds = MappingProxyType({}),
    path: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Lay ``change`` over ``base``, section by section.

    Of a section whose ``kind`` changes, the fields stay that the new kind has too, as ``kinds``
    says; the others mean nothing to it.
    """
    merged = dict(base)
    for key, value in change.items():
        old, place = merged.get(key), (*path, key)
        if isinstance(old, dict) and isinstance(value, dict):
            kind = value.get("kind", old.get("kind"))
            if kind != old.get("kind"):
                shared = kinds.get(place, {}).get(str(kind), frozenset())
                old = {name: item for name, item in old.items() if name in shared}
            merged[key] = merge(old, value, kinds, place)
        else:
            merged[key] = value
    return merged


FACTORY_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""package.module:function."""

NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
"""A name that is also a folder name: lower-case letters, digits, underscores."""

Count = Annotated[int, Field(ge=1)]
"""A whole number, one or more."""

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A number from 0 up to, not including, 1."""

Seconds = Annotated[float, Field(ge=0.0)]
"""A duration in seconds."""
