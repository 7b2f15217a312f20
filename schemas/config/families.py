"""Families, as defined by sweeps: variants that differ in one number, such as the bucket size."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from schemas.base import Name, Schema


class Member(Schema):
    """One variant of a family."""

    value: float = Field(gt=0, le=1e18, examples=[0.5])
    """The number that differs between members."""
    variant: Name = Field(examples=["batch_half"])
    """The variant with this number."""
    reference: Name | None = None
    """Variant that this member is compared with; null for the family's reference."""


class Family(Schema):
    """Variants that differ in one number, compared over its values."""

    title: str = Field(min_length=1)
    """Name of the number, as an axis label."""
    unit: str = ""
    """Unit of the number; empty for a count."""
    summary: str = Field(min_length=1)
    """The question that the family answers, in a sentence."""
    scale: Literal["log", "linear"] = "log"
    """Scale of the axis."""
    reference: Name | None = None
    """Variant that the members are compared with; null if each member has its own."""
    field: str = ""
    """Run spec field that holds the number; empty if not given."""
    as_in_study: list[Name] = Field(default_factory=list)
    """Members that have their number by the study's default: they drop out if the study sets a
    different one."""
    members: list[Member] = Field(min_length=2)
    """The variants with their numbers."""

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
"""Families by name."""
