"""Sweeps: the variants that an entry with several values yields, and the families over them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from schemas.base import Name, merge, paths_of
from schemas.config.run_spec import RunSpec
from schemas.config.variants import DATA_SECTIONS, Curve, Family, Sweep, SweepValue, Variant
from schemas.errors import ConfigProblem, nearest
from transformer_core.study.compositions import ComposedVariant


class SweptVariant(Variant):
    """A variant that a sweep yields, and where the sweep says so. Written like any other."""

    sweep: Name = Field(exclude=True)
    """Name of the sweep."""
    swept_field: str = Field(exclude=True)
    """The field that takes the value."""
    parent_at: int = Field(exclude=True)
    """Which of the sweep's parents is changed, from 0."""
    value_at: int = Field(exclude=True)
    """Which of the sweep's values it has, from 0."""

    def place(self, field: str) -> str:
        """Where the file says ``field`` of this variant, such as ``change.model.heads``."""
        swept = f"change.{self.swept_field}"
        if field == "parent":
            return f"{self.sweep}.parents[{self.parent_at}]"
        if f"{field}.".startswith(f"{swept}."):
            return f"{self.sweep}.values[{self.value_at}]"
        return f"{self.sweep}.{field}"


def place(name: str, variant: Variant, field: str) -> str:
    """Where the variants file says ``field`` of the variant ``name``."""
    if isinstance(variant, ComposedVariant):
        return variant.place(name, field)
    return variant.place(field) if isinstance(variant, SweptVariant) else f"{name}.{field}"


class Swept(NamedTuple):
    """The variant that one combination of a parent and a value yields."""

    name: str
    parent: str
    value: SweepValue
    parent_at: int
    value_at: int


def combinations_of(sweep: Sweep) -> Iterator[Swept]:
    """Every parent with every value, with the name of its variant."""
    for parent_at, parent in enumerate(sweep.parents):
        for value_at, value in enumerate(sweep.values):
            name = sweep.names.format(parent=parent, value=in_names(value))
            yield Swept(name, parent, value, parent_at, value_at)


def swept_variant(
    name: str, sweep: Sweep, one: Swept, parent: Variant | None
) -> SweptVariant | None:
    """The variant of ``one`` in the sweep ``name``; None for a parent that is not known."""
    if parent is None:
        return None
    change: Any = one.value.value
    for part in reversed(sweep.field.split(".")):
        change = {part: change}
    text = one.value.text if one.value.text is not None else _number(one.value.value)
    return SweptVariant(
        parent=one.parent,
        change=merge(sweep.change, change),
        equivalence=sweep.equivalence or parent.equivalence,
        tests=parent.tests if sweep.tests is None else sweep.tests,
        summary=sweep.summary.format(parent=parent.summary, value=text),
        sweep=name,
        swept_field=sweep.field,
        parent_at=one.parent_at,
        value_at=one.value_at,
    )


def family(sweep: Sweep, curve: Curve) -> Family:
    """The family of a curve: the variants of one parent by value, and the curve's ``others``."""
    parent = curve.parent or sweep.parents[0]
    own = "{value}" in curve.reference
    members = {}
    for value in sweep.values:
        label, at = in_names(value), on_axis(value)
        members[at] = {
            "value": at,
            "variant": sweep.names.format(parent=parent, value=label),
            "reference": curve.reference.format(value=label) if own else None,
        }
    members |= {other.value: other.model_dump() for other in curve.others}
    return Family.model_validate(
        {
            "title": curve.title,
            "unit": curve.unit,
            "summary": curve.summary,
            "scale": curve.scale,
            "reference": None if own else curve.reference,
            "field": sweep.field,
            "as_in_study": [other.variant for other in curve.others],
            "members": [members[at] for at in sorted(members, key=float)],
        }
    )


def wrong_with(name: str, sweep: Sweep, file: str) -> Iterator[ConfigProblem]:
    """Problems of a sweep that can be found without knowing the variants."""
    if sweep.field not in _fields():
        remedy = nearest(sweep.field, _fields())
        message = "is not a field that a variant can change"
        yield ConfigProblem(file, f"{name}.field", sweep.field, message, remedy)
    for one in combinations_of(sweep):
        try:
            TypeAdapter(Name).validate_python(one.name)
        except ValidationError:
            message = f"makes the name {one.name}, which is not a valid variant name"
            remedy = "use lower-case letters, digits and underscores, 64 at most: give it a name"
            field = f"{name}.values[{one.value_at}]"
            yield ConfigProblem(file, field, one.value.value, message, remedy)
    for key, curve in sweep.curves.items():
        if curve.parent is not None and curve.parent not in sweep.parents:
            field, remedy = f"{name}.curves.{key}.parent", nearest(curve.parent, sweep.parents)
            yield ConfigProblem(file, field, curve.parent, "is not a parent of the sweep", remedy)
        yield from _off_the_axis(name, sweep, key, file)


def wrong_families(
    name: str, sweep: Sweep, variants: Mapping[str, Variant], file: str
) -> Iterator[ConfigProblem]:
    """References and other members of the curves of a sweep that are no variants."""
    for key, curve in sweep.curves.items():
        named = {"reference": curve.reference}
        if "{value}" in curve.reference:
            every = (curve.reference.format(value=in_names(value)) for value in sweep.values)
            named["reference"] = next((one for one in every if one not in variants), "")
        for position, other in enumerate(curve.others):
            named[f"others[{position}].variant"] = other.variant
            named[f"others[{position}].reference"] = other.reference or ""
            if other.reference is None and "{value}" in curve.reference:
                field = f"{name}.curves.{key}.others[{position}].reference"
                message = f"is missing: {other.variant} has nothing to be compared with"
                yield ConfigProblem(file, field, None, message, "name a variant")
        for field, variant in named.items():
            if variant and variant not in variants:
                field, remedy = f"{name}.curves.{key}.{field}", nearest(variant, variants)
                yield ConfigProblem(file, field, variant, "is not a variant", remedy)


def in_names(value: SweepValue) -> str:
    """A value as the names of variants write it."""
    return value.name if value.name is not None else _number(value.value)


def on_axis(value: SweepValue) -> Any:
    """Where a value stands on a curve."""
    return value.at if value.at is not None else value.value


def _off_the_axis(name: str, sweep: Sweep, curve: str, file: str) -> Iterator[ConfigProblem]:
    seen = {other.value for other in sweep.curves[curve].others}
    here: set[Any] = set()
    for position, value in enumerate(sweep.values):
        at, field = on_axis(value), f"{name}.values[{position}].at"
        if isinstance(at, str) or at <= 0:
            message = f"has no place on the curve {curve}, whose values are numbers above 0"
            yield ConfigProblem(file, field, at, message, "add at: the number on its axis")
        elif at in here:
            message = "stands where another value of the curve does"
            yield ConfigProblem(file, field, at, message, "give another number")
        here.add(at)
    if len(here | seen) == 1:
        message, remedy = "has one member, which is not a curve", "add values, or others"
        yield ConfigProblem(file, f"{name}.curves.{curve}", None, message, remedy)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@cache
def _fields() -> frozenset[str]:
    """The fields of a run spec that a variant may change, dotted."""
    return frozenset(
        ".".join(path)
        for path in paths_of(RunSpec)
        if len(path) > 1 and path[0] not in DATA_SECTIONS
    )
