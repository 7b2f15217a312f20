"""Families: variants that differ in one number, such as the size of a bucket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from schemas.base import Name, Schema
from schemas.errors import ConfigError, ConfigProblem, nearest
from schemas.resolve import VARIANTS_FILE, read_entries
from schemas.study import Study, Variant

FAMILIES_FILE = "config/families.yaml"


class Member(Schema):
    """One variant of a family."""

    value: float = Field(gt=0)
    """The number in which the members differ."""
    variant: Name
    """The variant that has it."""
    reference: Name | None = None
    """Variant that this member is compared with; null for the reference of the family."""


class Family(Schema):
    """Variants that differ in one number, compared over its values."""

    title: str = Field(min_length=1)
    """What the number is, as the label of an axis."""
    unit: str = ""
    """Unit of the number; empty for a count."""
    summary: str = Field(min_length=1)
    """What is asked of the family, in a sentence."""
    scale: Literal["log", "linear"] = "log"
    """Scale of the axis."""
    reference: Name | None = None
    """Variant that the members are compared with; null if every member has one of its own."""
    members: list[Member] = Field(min_length=2)
    """The variants, each with its number."""

    @field_validator("members")
    @classmethod
    def _members_differ(cls, members: list[Member]) -> list[Member]:
        values = [member.value for member in members]
        for position, value in enumerate(values):
            if value in values[:position]:
                raise PydanticCustomError(
                    "repeated_value",
                    "holds the value {value} twice",
                    {"value": f"{value:g}", "remedy": "give each value once"},
                )
        return members

    def reference_of(self, member: Member) -> str | None:
        """The variant that ``member`` is compared with; null if none is given."""
        return member.reference or self.reference


Families = dict[Name, Family]
"""config/families.yaml: families by name."""


def read_families(
    path: str | Path, variants: Mapping[str, Variant], variants_file: str = VARIANTS_FILE
) -> dict[str, Family]:
    """All families by name; ConfigError if one names a variant that there is not."""
    families: dict[str, Family] = read_entries(path, Families)
    problems = []
    for name, family in families.items():
        named = {f"{name}.reference": family.reference}
        for position, member in enumerate(family.members):
            field = f"{name}.members[{position}]"
            named |= {f"{field}.variant": member.variant, f"{field}.reference": member.reference}
            if family.reference_of(member) is None:
                message = f"has nothing to be compared with: {member.variant}"
                remedy = f"give {name} or this member a reference"
                problems.append(
                    ConfigProblem(str(path), f"{field}.reference", None, message, remedy)
                )
        problems += [
            ConfigProblem(
                str(path),
                field,
                variant,
                f"is not defined in {variants_file}",
                nearest(variant, variants),
            )
            for field, variant in named.items()
            if variant is not None and variant not in variants
        ]
    if problems:
        raise ConfigError(problems)
    return families


def members_in(family: Family, study: Study) -> list[Member]:
    """The members that ``study`` runs together with their references, smallest value first."""
    runs = set(study.variants)
    found = [m for m in family.members if {m.variant, family.reference_of(m)} <= runs]
    return sorted(found, key=lambda member: member.value)


def family_pairs(families: Mapping[str, Family], study: Study) -> list[tuple[str, str]]:
    """The pairs (variant, reference) that the curves of ``study`` need, each once.

    A family of which the study runs fewer than two members has no curve.
    """
    pairs = [
        (member.variant, reference)
        for family in families.values()
        for members in [members_in(family, study)]
        if len(members) > 1
        for member in members
        if (reference := family.reference_of(member)) and reference != member.variant
    ]
    return list(dict.fromkeys(pairs))
