"""All variants, as a table: ``python -m transformer_core.study.variants``."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schemas.base import Name
from schemas.config.measurement import REFERENCE, Bitwise
from schemas.config.variants import JOINT, Composition, Family, Sweep, Variant
from schemas.errors import ConfigError, ConfigProblem, nearest
from transformer_core.common.endings import program
from transformer_core.common.yaml_files import check_entries, read_mapping
from transformer_core.study.compositions import compose
from transformer_core.study.resolve import VARIANTS_FILE, lineage
from transformer_core.study.sweeps import (
    Swept,
    combinations_of,
    family,
    place,
    swept_variant,
    wrong_families,
    wrong_with,
)

_OF_SWEEPS = frozenset(Sweep.model_fields) - frozenset(Variant.model_fields)
"""Fields that tell a sweep from a variant."""


class Declared(NamedTuple):
    """The declarations of a variants file."""

    variants: dict[str, Variant]
    """All variants by name, those of compositions and sweeps included."""
    families: dict[str, Family]
    """The curves of the sweeps by name."""


def read_variants(path: str | Path = VARIANTS_FILE) -> Declared:
    """All variants and families of a file.

    Raises ConfigError for an entry that may not look like this, a name given twice, a variant that
    is named and unknown, or parents in a circle.
    """
    file = str(path)
    plain, compositions, sweeps = _entries(read_mapping(path), file)
    problems = [p for name, sweep in sweeps.items() for p in wrong_with(name, sweep, file)]
    problems += _names_given_twice({**plain, **compositions}, sweeps, file)
    for name in (*plain, *compositions):
        if JOINT in name:
            message = f"holds {JOINT}, which joins the names of a composition"
            problems.append(ConfigProblem(file, name, name, message, "rename it"))
    if problems:
        raise ConfigError(problems)
    variants = _with_derived(plain, compositions, sweeps, file)
    problems = list(_unknown(variants, file))
    for name, sweep in sweeps.items():
        problems += wrong_families(name, sweep, variants, file)
    if problems:
        raise ConfigError(problems)
    families = {
        curve: family(sweep, sweep.curves[curve])
        for sweep in sweeps.values()
        for curve in sweep.curves
    }
    return Declared(variants, families)


def _entries(
    data: dict[Any, Any], file: str
) -> tuple[dict[str, Variant], dict[str, Composition], dict[str, Sweep]]:
    """The variants, compositions and sweeps of a file, each checked as what it looks like."""

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
    plain, compositions, sweeps = found
    return plain, compositions, sweeps


def _names_given_twice(
    plain: Mapping[str, Any], sweeps: Mapping[str, Sweep], file: str
) -> Iterator[ConfigProblem]:
    owner = dict.fromkeys(plain, "an entry of its own")
    families: dict[str, str] = {}
    for name, sweep in sweeps.items():
        for one in combinations_of(sweep):
            if one.name in owner:
                message = f"makes {one.name}, which is {owner[one.name]} already"
                remedy = "change names, or the name of a value"
                yield ConfigProblem(file, f"{name}.names", sweep.names, message, remedy)
            owner[one.name] = f"made by {name}"
        for curve in sweep.curves:
            if curve in families:
                message, remedy = f"is a curve of {families[curve]} already", "rename it"
                yield ConfigProblem(file, f"{name}.curves.{curve}", curve, message, remedy)
            families[curve] = name


def _with_derived(
    plain: dict[str, Variant],
    compositions: Mapping[str, Composition],
    sweeps: Mapping[str, Sweep],
    file: str,
) -> dict[str, Variant]:
    """The variants and those that compositions and sweeps make of them and of each other, in the
    order in which they are declared."""
    variants: dict[str, Variant] = dict(plain)
    composed, swept = (
        dict(compositions),
        [(name, one) for name, sweep in sweeps.items() for one in combinations_of(sweep)],
    )
    while composed or swept:
        known = set(variants)
        for name, composition in list(composed.items()):
            if set(composition.parts) <= variants.keys():
                variants[name] = compose(name, composed.pop(name), variants, file)
        waiting, swept = swept, []
        for name, one in waiting:
            found = swept_variant(name, sweeps[name], one, variants.get(one.parent))
            if found is None:
                swept.append((name, one))
            else:
                variants[one.name] = found
        if set(variants) == known:
            raise ConfigError(_of_unknown(composed, swept, variants, file))
    return variants


def _of_unknown(
    composed: Mapping[str, Composition],
    swept: Sequence[tuple[str, Swept]],
    variants: Mapping[str, Variant],
    file: str,
) -> Iterator[ConfigProblem]:
    """Names of which compositions and sweeps should be made and that are not variants."""
    unknown = {f"{name}.parents[{one.parent_at}]": one.parent for name, one in swept}
    for name, composition in composed.items():
        for position, part in enumerate(composition.parts):
            if part not in variants:
                unknown[f"{name}.with[{position}]"] = part
    for field, name in unknown.items():
        if name in composed:
            message, remedy = "is composed of variants that are not known", "correct these first"
        else:
            message, remedy = "is not a variant", nearest(name, variants)
        yield ConfigProblem(file, field, name, message, remedy)


def _unknown(variants: Mapping[str, Variant], file: str) -> Iterator[ConfigProblem]:
    """Names in variants that do not exist or are not allowed."""
    for name, variant in variants.items():
        lineage(name, variants, file)
        if name == REFERENCE:
            message, remedy = "is the name of the run that certificates compare with", "rename it"
            yield ConfigProblem(file, name, name, message, remedy)
        equivalence = variant.equivalence
        if isinstance(equivalence, Bitwise) and equivalence.against not in variants:
            field, other = place(name, variant, "equivalence.against"), equivalence.against
            yield ConfigProblem(file, field, other, "is not a variant", nearest(other, variants))


def table(declared: Declared) -> list[tuple[str, ...]]:
    """A row for each variant: name, parent, change, class of equivalence, families."""
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
        description="All variants: name, parent, change, class of equivalence, families.",
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
