"""Variants: those in the file, and those that its compositions and sweeps derive from them.

python -m transformer_core.study.variants        # all of them, as a table
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import combinations
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from schemas.base import Name, merge, paths_of
from schemas.config.measurement import (
    REFERENCE,
    Bitwise,
    ClassOfEquivalence,
    Different,
    Statistical,
    Tolerance,
)
from schemas.config.run_spec import RunSpec
from schemas.config.variants import (
    DATA_SECTIONS,
    JOINT,
    Composition,
    Curve,
    Family,
    Sweep,
    SweepValue,
    Variant,
)
from schemas.errors import ConfigError, ConfigProblem, nearest
from transformer_core.common.endings import program
from transformer_core.common.yaml_files import check_entries, read_mapping

VARIANTS_FILE = "config/variants.yaml"
_OF_SWEEPS = frozenset(Sweep.model_fields) - frozenset(Variant.model_fields)
"""Fields that distinguish a sweep from a variant."""


class DerivedVariant(Variant):
    """A variant derived by a composition or a sweep. Written like any other."""

    owner: str = Field(exclude=True)  # name of the entry that derives it
    places: dict[str, str] = Field(exclude=True)
    """Where the file sets some of its fields, by their dotted names."""


def place(name: str, variant: Variant, field: str) -> str:
    """Where the file sets ``field``, such as ``change.model.heads``, of the variant ``name``."""
    if not isinstance(variant, DerivedVariant):
        return f"{name}.{field}"
    said = (there for part, there in variant.places.items() if f"{field}.".startswith(f"{part}."))
    return next(said, f"{variant.owner}.{field}")


class Declared(NamedTuple):
    variants: dict[str, Variant]  # all variants by name, including derived ones
    families: dict[str, Family]  # curves of the sweeps, by name


def read_variants(path: str | Path = VARIANTS_FILE) -> Declared:
    """All variants and families in a file.

    Raises ConfigError for an invalid entry, a name given twice, a reference to an unknown variant,
    or circular parents.
    """
    file = str(path)
    variants, compositions, sweeps = _entries(read_mapping(path), file)
    _refuse(file, _wrong_names(variants, compositions, sweeps))
    _derive(variants, compositions, sweeps, file)
    wrong = (p for name, sweep in sweeps.items() for p in _wrong_families(name, sweep, variants))
    _refuse(file, [*_unknown(variants, file), *wrong])
    families = {
        name: _family(sweep, curve)
        for sweep in sweeps.values()
        for name, curve in sweep.curves.items()
    }
    return Declared(variants, families)


_Problem = tuple[str, Any, str, str]  # field, value, message, remedy


def _refuse(file: str, problems: Iterable[_Problem]) -> None:
    """ConfigError if there are any problems in the file."""
    if found := [ConfigProblem(file, *problem) for problem in problems]:
        raise ConfigError(found)


def _entries(
    data: dict[Any, Any], file: str
) -> tuple[dict[str, Variant], dict[str, Composition], dict[str, Sweep]]:
    """The variants, compositions and sweeps in a file, told apart by their fields and checked."""

    def kind_of(entry: Any) -> type[Variant | Composition | Sweep]:
        fields = set(entry) if isinstance(entry, dict) else set()
        return Sweep if _OF_SWEEPS & fields else Composition if "with" in fields else Variant

    problems: list[ConfigProblem] = []
    found: list[dict[str, Any]] = []
    for kind in (Variant, Composition, Sweep):
        part = {name: entry for name, entry in data.items() if kind_of(entry) is kind}
        try:
            found.append(check_entries(part, dict[Name, kind], file))  # type: ignore[valid-type]
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    variants, compositions, sweeps = found
    return variants, compositions, sweeps


def _wrong_names(
    variants: Mapping[str, Variant],
    compositions: Mapping[str, Composition],
    sweeps: Mapping[str, Sweep],
) -> Iterator[_Problem]:
    """Problems that can be found without knowing the derived variants."""
    for name, sweep in sweeps.items():
        yield from _wrong_with(name, sweep)
    owner = dict.fromkeys((*variants, *compositions), "another entry")
    families: dict[str, str] = {}
    for name, sweep in sweeps.items():
        for one in _swept(sweep):
            if one.name in owner:
                message = f"makes {one.name}, which is {owner[one.name]} already"
                remedy = "change names, or the name of a value"
                yield f"{name}.names", sweep.names, message, remedy
            owner[one.name] = f"made by {name}"
        for curve in sweep.curves:
            if curve in families:
                message = f"is a curve of {families[curve]} already"
                yield f"{name}.curves.{curve}", curve, message, "rename it"
            families[curve] = name
    for name in (*variants, *compositions):
        if JOINT in name:
            message = f"holds {JOINT}, which joins the names of a composition"
            yield name, name, message, "rename it"


class _Waiting(NamedTuple):
    """A variant to be derived once others are known."""

    name: str
    needs: dict[str, str]  # the variants that it is derived from, by the field that names them
    derive: Callable[[], DerivedVariant]


def _derive(
    variants: dict[str, Variant],
    compositions: Mapping[str, Composition],
    sweeps: Mapping[str, Sweep],
    file: str,
) -> None:
    """Add the variants that compositions and sweeps derive from ``variants`` and from each other."""
    waiting = []
    for name, composition in compositions.items():
        needs = {f"{name}.with[{n}]": part for n, part in enumerate(composition.parts)}
        derive = partial(_compose, name, composition, variants, file)
        waiting.append(_Waiting(name, needs, derive))
    for name, sweep in sweeps.items():
        for swept in _swept(sweep):
            needs = {f"{name}.parents[{swept.parent_at}]": swept.parent}
            derive = partial(_swept_variant, name, sweep, swept, variants)
            waiting.append(_Waiting(swept.name, needs, derive))
    while waiting:
        left = []
        for one in waiting:
            if {*one.needs.values()} <= variants.keys():
                variants[one.name] = one.derive()
            else:
                left.append(one)
        if len(left) == len(waiting):
            _refuse_waiting(left, variants, file)
        waiting = left


def _refuse_waiting(
    waiting: Iterable[_Waiting], variants: Mapping[str, Variant], file: str
) -> None:
    """ConfigError for unknown names among parts of compositions and parents of sweeps, or for a circle."""
    missing = {
        one.name: [need for need in one.needs.items() if need[1] not in variants] for one in waiting
    }
    known = {*variants, *missing}
    unknown = {need for needs in missing.values() for need in needs if need[1] not in known}
    _refuse(
        file, [(*need, "is not a variant", nearest(need[1], known)) for need in sorted(unknown)]
    )
    _followed(next(iter(missing)), lambda name: missing[name][0], known, file)


def _unknown(variants: Mapping[str, Variant], file: str) -> Iterator[_Problem]:
    """References to unknown variants, and names that are not allowed."""
    for name in variants:
        lineage(name, variants, file)
        # A variant that must equal itself would always have a certificate.
        _followed(name, partial(_against, variants), variants, file)
        if name == REFERENCE:
            yield name, name, "is the name of the run that certificates compare with", "rename it"


def _against(variants: Mapping[str, Variant], name: str) -> tuple[str, str | None]:
    equivalence = variants[name].equivalence
    other = equivalence.against if isinstance(equivalence, Bitwise) else None
    return place(name, variants[name], "equivalence.against"), other


def lineage(name: str, variants: Mapping[str, Variant], file: str = VARIANTS_FILE) -> list[str]:
    """The variant and its ancestors, oldest first; ConfigError if one is missing or circular."""

    def parent(name: str) -> tuple[str, str | None]:
        return place(name, variants[name], "parent"), variants[name].parent

    return _followed(name, parent, variants, file)[::-1]


def _followed(
    name: str, following: Callable[[str], tuple[str, str | None]], known: Collection[str], file: str
) -> list[str]:
    """The name, the one ``following`` it, and so on; ConfigError, with the field that names it, if one is
    not known or circular."""
    line: list[str] = []
    field: str = name
    current: str | None = name
    while current is not None:
        if current in line:
            circle = " -> ".join([*line, current])
            _refuse(file, [(field, current, f"is circular: {circle}", "break the circle")])
        if current not in known:
            _refuse(file, [(field, current, "is not a variant", nearest(current, known))])
        line.append(current)
        field, current = following(current)
    return line


# Compositions: several variants at once, declared in the file or named by a study.


def _compose(
    name: str, one: Composition, variants: Mapping[str, Variant], file: str
) -> DerivedVariant:
    """The variant of a composition whose parts are all among ``variants``.

    Raises ConfigError if two parts set the same field to different values, naming both.
    """
    base, others = one.parts[0], one.parts[1:]
    own = {part: variants[part].change for part in others}
    twice = (
        (f"{name}.with[{position}]", part, "is named twice", "remove one")
        for position, part in enumerate(one.parts)
        if part in one.parts[:position]
    )
    _refuse(file, [*_conflicts(name, own), *twice])
    change: dict[str, Any] = {}
    for laid in (*own.values(), one.change):
        change = merge(change, laid)
    every = [variants[part] for part in one.parts]
    tests = dict.fromkeys(test for part in every for test in part.tests)
    summaries = " ".join(part.summary for part in every[1:])
    places = {"parent": f"{name}.with[0]"}
    for position, laid in enumerate(own.values(), 1):
        for path, _ in leaves(laid):
            places.setdefault(".".join(("change", *path)), f"{name}.with[{position}]")
    return DerivedVariant(
        parent=base,
        change=change,
        equivalence=one.equivalence or _promised(base, every, bool(one.change)),
        tests=list(tests) if one.tests is None else one.tests,
        summary=one.summary or f"{base}, with {', '.join(others)}: {summaries}",
        owner=name,
        places=places,
    )


def with_compositions(
    variants: Mapping[str, Variant], names: Iterable[str], file: str = "study"
) -> dict[str, Variant]:
    """``variants``, and those of ``names`` that are compositions of them."""
    found = dict(variants)
    for name in names:
        parts = _parts(name, variants)
        if name not in found and len(parts) > 1 and set(parts) <= found.keys():
            composition = Composition.model_validate({"with": parts})
            found[name] = _compose(name, composition, found, file)
    return found


def _parts(name: str, variants: Mapping[str, Variant]) -> list[str]:
    """The variants that the name of a composition joins. The names that a sweep makes may hold JOINT, too."""
    parts: list[str] = []
    for word in name.split(JOINT):
        longer = JOINT.join((*parts[-1:], word))
        if word in variants or longer not in variants:
            parts.append(word)
        else:
            parts[-1] = longer
    return parts


_FORMER = {"published": "as_published", "written_out": "written_out"}
"""Prefixes of former names of compositions, and the variants that now stand for them."""
_RENAMED = {
    "adamw_fused": "adamw",
    "update_folded": "adamw_with_clipping_folded",
    "fused_softmax": "attention_fused_softmax",
    "onednn": "fp32_onednn",
    "sdpa": "attention_sdpa",
    "shared_draws": "dropout_shared_draws",
}
"""Suffixes of such names that differ from the names of variants."""


def unknown_variant(name: str, variants: Mapping[str, Variant]) -> tuple[str, str]:
    """Explains why a name is not a variant, and what to write instead."""
    for start, base in _FORMER.items():
        end = name.removeprefix(f"{start}_")
        if end != name and (end in _RENAMED or end in variants):
            now = JOINT.join((base, _RENAMED.get(end, end)))
            parts = ", ".join(now.split(JOINT))
            return "is now a composition", f"write {{with: [{parts}]}}, whose name is {now}"
    for part in _parts(name, variants):
        if JOINT in name and part not in variants:
            return f"is composed with {part}, which is not a variant", nearest(part, variants)
    return "is not a variant", nearest(name, variants)


def leaves(change: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields of a change that are not sections, with their paths."""
    if isinstance(change, dict):
        for key, value in change.items():
            yield from leaves(value, (*path, key))
    elif path:
        yield path, change


def contradiction(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> tuple[str, ...] | None:
    """The first field that two changes, given as their leaves, set to different values. One may set
    a section as a whole (to null, for example), and the other its fields."""
    for path, value in one.items():
        if other.get(path, value) != value:
            return path
    for path in one:
        for longer in other:
            end = min(len(path), len(longer))
            if path != longer and path[:end] == longer[:end]:
                return path[:end]
    return None


def loosest(classes: Sequence[ClassOfEquivalence]) -> ClassOfEquivalence:
    """The class of a combination of these: the least strict one, the first of equals; tolerance instead
    of bitwise, which only holds for one other variant."""
    order: list[type] = [Bitwise, Tolerance, Statistical, Different]
    found = max(classes, key=lambda one: order.index(type(one)))
    return Tolerance(kind="tolerance") if isinstance(found, Bitwise) else found


def _conflicts(name: str, own: Mapping[str, dict[str, Any]]) -> Iterator[_Problem]:
    for one, other in combinations(own, 2):
        first, second = dict(leaves(own[one])), dict(leaves(own[other]))
        if (path := contradiction(first, second)) is not None:
            values: list[Any] = [reduce(getitem, path, own[part]) for part in (one, other)]
            message = (
                f"set {'.'.join(path)} differently: {one} to {values[0]}, {other} to {values[1]}"
            )
            yield f"{name}.with", f"{one}, {other}", message, f"leave {one} or {other} out"


def _promised(base: Name, every: Sequence[Variant], changed: bool) -> ClassOfEquivalence:
    """The class of a composition of ``every``: that of its loosest part. If no part after the first
    changes any number, it must be bitwise equal to the first."""
    others = [part.equivalence for part in every[1:]]
    if others and not changed and all(isinstance(each, Bitwise) for each in others):
        return Bitwise(kind="bitwise", against=base, reason=others[0].reason)
    found = loosest([part.equivalence for part in every])
    alike = [each.equivalence for each in every if type(each.equivalence) is type(found)] or [found]
    reasons = " ".join(dict.fromkeys(each.reason for each in alike))
    return found.model_copy(update={"reason": reasons})


# Sweeps: one technique with several values, and the families over them.


class _Swept(NamedTuple):
    """The variant of one parent and one value."""

    name: str
    parent: str
    value: SweepValue
    parent_at: int
    value_at: int


def _swept(sweep: Sweep) -> Iterator[_Swept]:
    for parent_at, parent in enumerate(sweep.parents):
        for value_at, value in enumerate(sweep.values):
            name = sweep.names.format(parent=parent, value=_in_names(value))
            yield _Swept(name, parent, value, parent_at, value_at)


def _swept_variant(
    name: str, sweep: Sweep, one: _Swept, variants: Mapping[str, Variant]
) -> DerivedVariant:
    parent = variants[one.parent]
    change: Any = one.value.value
    for part in reversed(sweep.field.split(".")):
        change = {part: change}
    text = one.value.text if one.value.text is not None else _number(one.value.value)
    return DerivedVariant(
        parent=one.parent,
        change=merge(sweep.change, change),
        equivalence=sweep.equivalence or parent.equivalence,
        tests=parent.tests if sweep.tests is None else sweep.tests,
        summary=sweep.summary.format(parent=parent.summary, value=text),
        owner=name,
        places={
            "parent": f"{name}.parents[{one.parent_at}]",
            f"change.{sweep.field}": f"{name}.values[{one.value_at}]",
        },
    )


def _family(sweep: Sweep, curve: Curve) -> Family:
    """The family of a curve: the variants of one parent by value, and the ``others``."""
    parent = curve.parent or sweep.parents[0]
    own = "{value}" in curve.reference
    members = {}
    for value in sweep.values:
        label, at = _in_names(value), _on_axis(value)
        members[at] = {
            "value": at,
            "variant": sweep.names.format(parent=parent, value=label),
            "reference": curve.reference.format(value=label) if own else None,
        }
    members |= {other.value: other.model_dump() for other in curve.others}
    return Family.model_validate(
        {
            **curve.model_dump(include={"title", "unit", "summary", "scale"}),
            "reference": None if own else curve.reference,
            "field": sweep.field,
            "as_in_study": [other.variant for other in curve.others],
            "members": [members[at] for at in sorted(members, key=float)],
        }
    )


def _wrong_with(name: str, sweep: Sweep) -> Iterator[_Problem]:
    """Problems of a sweep that can be found without knowing the variants."""
    if sweep.field not in _fields():
        message = "is not a field that a variant can change"
        yield f"{name}.field", sweep.field, message, nearest(sweep.field, _fields())
    for one in _swept(sweep):
        try:
            TypeAdapter(Name).validate_python(one.name)
        except ValidationError:
            message = f"makes the name {one.name}, which is not a valid variant name"
            remedy = "use lower-case letters, digits and underscores, 64 at most: give it a name"
            yield f"{name}.values[{one.value_at}]", one.value.value, message, remedy
    for key, curve in sweep.curves.items():
        if curve.parent is not None and curve.parent not in sweep.parents:
            message, remedy = "is not a parent of the sweep", nearest(curve.parent, sweep.parents)
            yield f"{name}.curves.{key}.parent", curve.parent, message, remedy
        yield from _off_the_axis(name, sweep, key)


def _wrong_families(name: str, sweep: Sweep, variants: Mapping[str, Variant]) -> Iterator[_Problem]:
    """References and ``others`` of the curves of a sweep that are not variants."""
    for key, curve in sweep.curves.items():
        named = {"reference": curve.reference}
        if "{value}" in curve.reference:
            every = (curve.reference.format(value=_in_names(value)) for value in sweep.values)
            named["reference"] = next((one for one in every if one not in variants), "")
        for position, other in enumerate(curve.others):
            named[f"others[{position}].variant"] = other.variant
            named[f"others[{position}].reference"] = other.reference or ""
            if other.reference is None and "{value}" in curve.reference:
                field = f"{name}.curves.{key}.others[{position}].reference"
                message = f"is missing: {other.variant} has nothing to be compared with"
                yield field, None, message, "name a variant"
        for field, variant in named.items():
            if variant and variant not in variants:
                field, remedy = f"{name}.curves.{key}.{field}", nearest(variant, variants)
                yield field, variant, "is not a variant", remedy


def _off_the_axis(name: str, sweep: Sweep, curve: str) -> Iterator[_Problem]:
    seen = {other.value for other in sweep.curves[curve].others}
    here: set[Any] = set()
    for position, value in enumerate(sweep.values):
        at, field = _on_axis(value), f"{name}.values[{position}].at"
        if isinstance(at, str) or at <= 0:
            message = f"has no place on the curve {curve}, whose values are numbers above 0"
            yield field, at, message, "add at, its number on the axis"
        elif at in here:
            yield field, at, "is the place of another value of the curve", "give another number"
        here.add(at)
    if len(here | seen) == 1:
        yield f"{name}.curves.{curve}", None, "has only one member", "add values, or others"


def _in_names(value: SweepValue) -> str:
    return value.name if value.name is not None else _number(value.value)


def _on_axis(value: SweepValue) -> Any:
    return value.at if value.at is not None else value.value


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@cache
def _fields() -> frozenset[str]:
    """The fields of a run spec that a variant may change, dotted."""
    paths = (path for path in paths_of(RunSpec) if len(path) > 1 and path[0] not in DATA_SECTIONS)
    return frozenset(map(".".join, paths))


def table(declared: Declared) -> list[tuple[str, ...]]:
    families: dict[str, list[str]] = {}
    for name, curve in declared.families.items():
        for member in curve.members:
            families.setdefault(member.variant, []).append(name)
    rows: list[tuple[str, ...]] = [("variant", "parent", "change", "class", "families")]
    for name, variant in declared.variants.items():
        change = json.dumps(variant.change).replace('"', "")
        kind = variant.equivalence.kind
        rows.append((name, variant.parent or "-", change, kind, ", ".join(families.get(name, []))))
    return rows


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.study.variants",
        description="List all variants: name, parent, change, equivalence class, families.",
    )
    parser.add_argument(
        "file", nargs="?", default=VARIANTS_FILE, help="variants file (default: %(default)s)"
    )
    try:
        rows = table(read_variants(parser.parse_args(arguments).file))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
