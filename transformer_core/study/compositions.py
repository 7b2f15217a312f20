"""Compositions: several variants at once, declared in the variants file or named by a study."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any

from pydantic import Field

from schemas.base import Name, merge
from schemas.config.measurement import (
    Bitwise,
    ClassOfEquivalence,
    Different,
    Statistical,
    Tolerance,
)
from schemas.config.variants import JOINT, Composition, Variant
from schemas.errors import ConfigError, ConfigProblem, nearest

_STEPS = MappingProxyType(
    {
        "published_adamw": "adamw",
        "published_allocator_kept": "allocator_kept",
        "published_dropout_fused": "dropout_fused",
        "published_fused_softmax": "attention_fused_softmax",
        "published_loss_one_pass": "loss_one_pass",
        "published_loss_whole": "loss_whole",
        "published_memory_together": "memory_together",
        "published_norm_fused": "norm_fused",
        "published_onednn": "fp32_onednn",
        "published_qkv_fused": "qkv_fused",
        "published_sdpa": "attention_sdpa",
        "published_shared_draws": "dropout_shared_draws",
        "published_tokens_unpadded": "tokens_unpadded",
        "published_update_folded": "adamw_with_clipping_folded",
        "written_out_adamw_fused": "adamw",
        "written_out_allocator_kept": "allocator_kept",
        "written_out_loss_one_pass": "loss_one_pass",
        "written_out_qkv_fused": "qkv_fused",
        "written_out_sdpa": "attention_sdpa",
    }
)
"""Former names of compositions, and the variants that are composed with the baseline now."""


class ComposedVariant(Variant):
    """The variant that a composition yields. Written like any other."""

    parts: dict[str, dict[str, Any]] = Field(exclude=True)
    """The own changes of the parts after the first, by name."""

    def place(self, name: str, field: str) -> str:
        """Where the file says ``field`` of this variant, such as ``change.model.heads``."""
        if field == "parent":
            return f"{name}.with[0]"
        path = tuple(field.split("."))[1:]
        for position, change in enumerate(self.parts.values(), 1):
            if any(path[: len(leaf)] == leaf for leaf, _ in leaves(change)):
                return f"{name}.with[{position}]"
        return f"{name}.{field}"


def compose(
    name: str, one: Composition, variants: Mapping[str, Variant], file: str
) -> ComposedVariant:
    """The variant of a composition whose parts are all among ``variants``.

    Raises ConfigError where two parts set the same field to different values, naming both.
    """
    base, others = one.parts[0], one.parts[1:]
    own = {part: variants[part].change for part in others}
    problems = list(_conflicts(name, own, file))
    for position, part in enumerate(one.parts):
        if part in one.parts[:position]:
            field, remedy = f"{name}.with[{position}]", "remove one"
            problems.append(ConfigProblem(file, field, part, "is named twice", remedy))
    if problems:
        raise ConfigError(problems)
    change: dict[str, Any] = {}
    for laid in (*own.values(), one.change):
        change = merge(change, laid)
    every = [variants[part] for part in one.parts]
    summaries = " ".join(part.summary for part in every[1:])
    return ComposedVariant(
        parent=base,
        change=change,
        equivalence=one.equivalence or _promised(base, every, bool(one.change)),
        tests=list(dict.fromkeys(test for part in every for test in part.tests))
        if one.tests is None
        else one.tests,
        summary=one.summary or f"{base}, with {', '.join(others)}: {summaries}",
        parts=own,
    )


def with_compositions(
    variants: Mapping[str, Variant], names: Iterable[str], file: str = "study"
) -> dict[str, Variant]:
    """``variants`` and those of ``names`` that are compositions of them."""
    found = dict(variants)
    for name in names:
        parts = name.split(JOINT)
        if name not in found and len(parts) > 1 and set(parts) <= found.keys():
            composition = Composition.model_validate({"with": parts})
            found[name] = compose(name, composition, found, file)
    return found


def unknown_variant(name: str, variants: Mapping[str, Variant]) -> tuple[str, str]:
    """Explains why a name is not a variant, and what to write instead."""
    if name in _STEPS:
        base = "as_published" if name.startswith("published") else "written_out"
        parts = ", ".join((base, *_STEPS[name].split(JOINT)))
        now = f"{base}{JOINT}{_STEPS[name]}"
        return "is now a composition", f"write {{with: [{parts}]}}, whose name is {now}"
    for part in name.split(JOINT):
        if JOINT in name and part not in variants:
            return f"is composed with {part}, which is not a variant", nearest(part, variants)
    return "is not a variant", nearest(name, variants)


def leaves(change: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of a change that is not a section, with its path."""
    if isinstance(change, dict) and change:
        for key, value in change.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, change


def contradiction(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> tuple[str, ...] | None:
    """The first field that two changes, given as their leaves, set to different values."""
    return next((path for path, value in one.items() if other.get(path, value) != value), None)


def loosest(classes: Sequence[ClassOfEquivalence]) -> ClassOfEquivalence:
    """The class that asks least, of two alike the first; tolerance if there is none."""
    order: list[type] = [Bitwise, Tolerance, Statistical, Different]
    return max(classes, key=lambda one: order.index(type(one)), default=Tolerance(kind="tolerance"))


def _conflicts(name: str, own: Mapping[str, dict[str, Any]], file: str) -> Iterator[ConfigProblem]:
    for one, other in combinations(own, 2):
        first, second = dict(leaves(own[one])), dict(leaves(own[other]))
        if (path := contradiction(first, second)) is not None:
            message = (
                f"set {'.'.join(path)} differently: {one} to {first[path]}, "
                f"{other} to {second[path]}"
            )
            remedy = f"leave {one} or {other} out"
            yield ConfigProblem(file, f"{name}.with", f"{one}, {other}", message, remedy)


def _promised(base: Name, every: Sequence[Variant], changed: bool) -> ClassOfEquivalence:
    """How closely a composition of ``every`` must train the same model: as its loosest part. If
    all parts after the first change no number, it must equal the first to the last bit."""
    others = [part.equivalence for part in every[1:]]
    if others and not changed and all(isinstance(each, Bitwise) for each in others):
        return Bitwise(kind="bitwise", against=base, reason=others[0].reason)
    found = loosest([part.equivalence for part in every])
    if isinstance(found, Bitwise):
        return Tolerance(kind="tolerance")
    alike = [each.equivalence for each in every if type(each.equivalence) is type(found)]
    reasons = " ".join(dict.fromkeys(each.reason for each in alike))
    return found.model_copy(update={"reason": reasons})
