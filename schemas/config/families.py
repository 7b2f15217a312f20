"""Families, as sweeps yield them: variants that differ in one number, such as a bucket's size."""

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from schemas.base import Name, Schema


class Member(Schema):
    """One variant of a family."""

    value: float = Field(gt=0, le=1e18, examples=[0.5])
    """The number in which the members differ."""
    variant: Name = Field(examples=["batch_half"])
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
    field: str = ""
    """Field of the run spec that holds the number; empty if it is not told."""
    as_in_study: list[Name] = Field(default_factory=list)
    """Members that have the number because studies have it by default: in a study that says
    another they are none."""
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
"""Families by name."""
