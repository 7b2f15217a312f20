"""The base class and the small field types shared by all schemas."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, get_args

from annotated_types import Unit
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError


def refusal(message: str, remedy: str) -> PydanticCustomError:
    """The error that a validator raises: the problem with a value, and the remedy."""
    return PydanticCustomError("refused", "{message}", {"message": message, "remedy": remedy})


def _no_switch(value: Any) -> Any:
    """Refuses true and false, also within a list or a mapping."""
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, bool) or (
        isinstance(value, list | tuple | dict) and any(isinstance(one, bool) for one in values)
    ):
        raise refusal("is true or false, not a number", "give a number, in digits")
    return value


_NUMBERS = BeforeValidator(_no_switch)


def _types(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, without those inside schemas."""
    yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def schemas_in(annotation: Any) -> Iterator[type["Schema"]]:
    """The schemas that an annotation allows."""
    for part in _types(annotation):
        if isinstance(part, type) and issubclass(part, Schema):
            yield part


class Schema(BaseModel):
    """A validated, immutable record. The docstrings below its fields describe them; only
    :mod:`schemas.generate` reads them, as finding them in the source takes as long as the rest
    of the import."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,  # most processes need few of them
        validate_default=True,
        allow_inf_nan=False,  # JSON has neither: a file that holds one could not be read back
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Pydantic takes true for 1: fields for numbers refuse it."""
        for field in cls.model_fields.values():
            types = set(_types(field.annotation))
            if types & {int, float} and not types & {bool, Any} and _NUMBERS not in field.metadata:
                field.metadata.append(_NUMBERS)

    def canonical_json(self) -> str:
        """The canonical JSON text of this record: sorted keys, no spaces, all defaults included."""
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
"""The fields of each kind of a section, by section path."""


def exactly(number: float) -> str:
    """The shortest text that says a number without rounding it."""
    short = f"{number:g}"
    return short if float(short) == number else str(number)


def not_less_than(least: str) -> AfterValidator:
    """Refuses a number below that of an earlier field, ``least``."""

    def check(value: float, info: ValidationInfo) -> float:
        bound = info.data.get(least)
        if bound is not None and value < bound:
            remedy = f"use at least {exactly(bound)}, or make {least} smaller"
            raise refusal(f"is less than {least} = {exactly(bound)}", remedy)
        return value

    return AfterValidator(check)


def kinds_of(
    model: type[Schema], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], dict[str, frozenset[str]]]:
    """Returns the :data:`Kinds` of all sections below ``model``."""
    found: dict[tuple[str, ...], dict[str, frozenset[str]]] = {}
    for name, field in model.model_fields.items():
        place = (*path, name)
        for section in schemas_in(field.annotation):
            if "kind" in section.model_fields:
                (kind,) = get_args(section.model_fields["kind"].annotation)
                found.setdefault(place, {})[kind] = frozenset(section.model_fields)
            for below, kinds in kinds_of(section, place).items():
                found.setdefault(below, {}).update(kinds)
    return found


def paths_of(model: type[Schema], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of ``model`` and of the sections below it, of every kind."""
    for name, field in model.model_fields.items():
        yield (*path, name)
        for section in schemas_in(field.annotation):
            yield from paths_of(section, (*path, name))


def merge(
    base: dict[str, Any],
    change: dict[str, Any],
    kinds: Kinds = MappingProxyType({}),
    path: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Merge ``change`` into ``base``, section by section.

    If the ``kind`` of a section changes, only the fields that the new kind also has are kept,
    according to ``kinds``. A section without a kind keeps all its fields.
    """
    merged = dict(base)
    for key, value in change.items():
        old, place = merged.get(key), (*path, key)
        if isinstance(old, dict) and isinstance(value, dict):
            kind = value.get("kind", old.get("kind"))
            # Traces and links may have any name, also this one.
            if "kind" in old and isinstance(kind, str) and kind != old["kind"]:
                shared = kinds.get(place, {}).get(kind, frozenset())
                old = {name: item for name, item in old.items() if name in shared}
            merged[key] = merge(old, value, kinds, place)
        else:
            merged[key] = value
    return merged


def omitted(default: Any, **more: Any) -> Any:
    """A field that is left out of files if it has its default, so that older run specs keep their
    hashes."""
    return Field(default=default, exclude_if=lambda value: value == default, **more)


FACTORY_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"  # package.module:function
LINE_PATTERN = r"^[^\x00-\x1f\x7f]*$"  # no control characters: neither NUL nor an end of line

SHA256_PATTERN = r"^[0-9a-f]{64}$"

URL_PATTERN = r"^https?://[^\x00-\x1f\x7f]*$"

NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
"""A name that is also a folder name: lower-case letters, digits, underscores."""

Count = Annotated[int, Field(ge=1, le=1_000)]
"""A whole number of things that a study lists or repeats."""

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]  # any signed 64-bit integer
Decimal = Annotated[float, Field(ge=-1e18, le=1e18)]  # any measured number, in any unit
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]  # a number from 0 up to, not including, 1
MOST_SECONDS = 604_800.0  # a week: longer than a study ever waits
Seconds = Annotated[float, Field(ge=0.0, le=MOST_SECONDS), Unit("seconds")]  # a duration in seconds

DURATION_PATTERN = r"^\s*[0-9]{1,6}(\.[0-9]{1,6})?\s*(s|min|h)\s*$"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0}


def seconds_of(duration: str) -> float:
    """Seconds in a text such as 90 s, 10 min or 1h; raises ValueError for anything else."""
    found = re.match(DURATION_PATTERN, duration)
    if found is None:
        raise ValueError(f"{duration!r} is not a duration")
    return float(duration[: found.start(2)]) * _UNITS[found[2]]


def _duration(value: Any) -> str:
    """The canonical form of a duration: 1h and 60 min are the same study."""
    remedy = "write a number and its unit: 90 s, 10 min or 1h"
    try:
        seconds = seconds_of(str(value))
    except ValueError:
        raise refusal("is not a duration", remedy) from None
    if not 1 <= seconds <= MOST_SECONDS:
        remedy = "give a duration from 1 s to 168 h"
        raise refusal("is less than a second, or more than a week", remedy)
    unit = next(unit for unit in ("h", "min", "s") if not seconds % _UNITS[unit] or unit == "s")
    return f"{seconds / _UNITS[unit]:.10g} {unit}"


Duration = Annotated[str, BeforeValidator(_duration), Field(pattern=DURATION_PATTERN)]
"""A duration with its unit, as text: 90 s, 10 min, 1h."""

_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]iB|B|)\s*", value)
    if found is None:
        remedy = "write a number and a unit, as 512MiB or 2GiB"
        raise refusal("is not a size", remedy)
    return round(float(found[1]) * _SIZES[found[2]])


_Bytes = Annotated[int, Field(ge=1, le=2**50)]
Size = Annotated[_Bytes, BeforeValidator(_size, json_schema_input_type=_Bytes | str), Unit("bytes")]
"""A number of bytes, or text with a unit: 512MiB, 2GiB."""

MOST_STEPS = 10_000_000
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS), Unit("steps")]
StepsOrNone = Annotated[int, Field(ge=0, le=MOST_STEPS), Unit("steps")]  # steps, or 0 for none
Pairs = Annotated[int, Field(ge=1, le=10_000_000_000), Unit("pairs")]
"""Sentence pairs: the maximum exceeds any corpus."""
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000), Unit("tokens")]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""A seed that every random number generator accepts."""
Rate = Annotated[float, Field(gt=0.0, le=100.0)]  # a learning rate

Line = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=LINE_PATTERN)]
"""A single line of text for display."""
PathText = Annotated[str, StringConstraints(min_length=1, max_length=4_096, pattern=LINE_PATTERN)]
"""The path of a file or folder."""
