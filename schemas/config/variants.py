"""Variants: single changes, compositions of several, or sweeps over many values."""

from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from schemas.base import Decimal, Name, Schema, Whole, refusal
from schemas.config.measurement import AnyEquivalence
from schemas.config.run_spec import RunSpec
from schemas.errors import nearest


class Member(Schema):
    """One variant of a family."""

    value: float = Field(gt=0, le=1e18, examples=[0.5])  # the number that differs between members
    variant: Name = Field(examples=["batch_half"])  # the variant with this number
    reference: Name | None = None
    """Variant that this member is compared with; null for the family's reference."""


class Family(Schema):
    """Variants that differ in one number, compared over its values."""

    title: str = Field(min_length=1)  # name of the number, as an axis label
    unit: str = ""  # unit of the number; empty for a count
    summary: str = Field(min_length=1)  # the question that the family answers, in a sentence
    scale: Literal["log", "linear"] = "log"  # scale of the axis
    reference: Name | None = None
    """Variant that the members are compared with; null if each member has its own."""
    field: str = ""  # run spec field that holds the number; empty if not given
    as_in_study: list[Name] = Field(default_factory=list)
    """Members that have their number by the study's default: they drop out if the study sets a
    different one."""
    members: list[Member] = Field(min_length=2)  # the variants with their numbers

    @field_validator("members")
    @classmethod
    def _members_differ(cls, members: list[Member]) -> list[Member]:
        values = [member.value for member in members]
        for position, value in enumerate(values):
            if value in values[:position]:
                raise refusal(f"holds the value {value:g} twice", "give each value once")
        return members

    def reference_of(self, member: Member) -> str | None:
        """The variant that ``member`` is compared with; null if none is given."""
        return member.reference or self.reference


Families = dict[Name, Family]  # families by name


DATA_SECTIONS = frozenset({"task", "corpus", "filter", "tokenizer"})
"""Sections shared by all variants of a study, so that they train on the same sentences."""


def _of_a_run(change: dict[str, Any]) -> dict[str, Any]:
    known = set(RunSpec.model_fields) - DATA_SECTIONS - {"variant"}
    for section in change:
        if section in DATA_SECTIONS or section == "evaluation":
            message = f"holds {section}, which all variants of a study share"
            raise refusal(message, f"put {section} in a study of its own")
        if section not in known:
            message = f"holds {section}, which is not a section of a run spec"
            raise refusal(message, nearest(section, known))
    return change


Change = Annotated[dict[str, Any], AfterValidator(_of_a_run)]
"""Sections and fields of the run spec with their new values."""


class Variant(Schema):
    """One change to a parent variant."""

    parent: Name | None = None  # variant that this one changes; null for the study itself
    change: Change = Field(default_factory=dict)
    """Sections and fields of the run spec, as in a study, with their new values."""
    equivalence: AnyEquivalence
    """How closely it must train the same model as the single-device fp32 reference: a class with
    its bounds, or just its name for the default bounds."""
    tests: list[str] = Field(default_factory=list)
    """Items of the original study that it relates to: techniques A1-A19, claims C1-C16."""
    summary: str = Field(min_length=1)  # the change and its purpose, in a sentence


class Composition(Schema):
    """Several variants at once: all of the first, and the own change of each other one."""

    parts: list[Name] = Field(alias="with", min_length=1, examples=[["ddp", "amp_bf16"]])
    """Variants: the first one whole, and from each other one its change to its parent, applied
    in order. No two of the others may set the same field differently."""
    change: Change = Field(default_factory=dict)  # additional changes, applied on top of the parts
    equivalence: AnyEquivalence | None = None
    """How closely it must train the same model; null to derive it from its parts."""
    tests: list[str] | None = None
    """Items of the original study that it relates to; null for those of its parts."""
    summary: str | None = Field(default=None, min_length=1)
    """The change and its purpose, in a sentence; null for the summaries of its parts."""


def _joined(value: Any) -> Any:
    """The name of a composition written as {with: [...]}."""
    if isinstance(value, dict):
        parts = value["with"] if set(value) == {"with"} else None
        if not parts or not isinstance(parts, list) or not all(isinstance(p, str) for p in parts):
            remedy = "write {with: [first, second]}, or define it in config/variants.yaml"
            raise refusal("is not a composition of variants", remedy)
        name = JOINT.join(parts)
        if len(name) > 64:
            message = f"makes a name of {len(name)} characters, but at most 64 are allowed"
            raise refusal(message, "define it in config/variants.yaml, under a name of your own")
        return name
    return value


JOINT = "_with_"  # joins variant names into the name of their composition

VariantName = Annotated[
    Name, BeforeValidator(_joined, json_schema_input_type=Name | dict[Literal["with"], list[Name]])
]
"""A name in config/variants.yaml, or a composition: {with: [as_published, qkv_fused]}, whose
name is as_published_with_qkv_fused."""


class SweepValue(Schema):
    """One value of a sweep, and how it is written in names and text."""

    value: Decimal | Whole | str = Field(examples=[25])  # the value of the field
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")] | None = None
    """The value in names, such as 256kb; null for the number itself."""
    text: str | None = None  # the value in the summary; null for the number itself
    at: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """The value on the axis of a curve; null for the number itself."""


def _number_alone(value: Any) -> Any:
    return {"value": value} if isinstance(value, int | float | str) else value


def _with(*known: str) -> AfterValidator:
    """A check that a text contains no placeholders other than those ``known``."""

    def check(text: str) -> str:
        try:
            found = [
                field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                for _, field, form, conversion in Formatter().parse(text)
                if field is not None
            ]
        except ValueError as error:
            remedy = f"write {' or '.join(f'{{{name}}}' for name in known)}"
            raise refusal("has an unmatched brace", remedy) from error
        for field in found:
            if field not in known:
                raise refusal(f"has the placeholder {{{field}}}", nearest(field, known))
        return text

    return AfterValidator(check)


class Curve(Schema):
    """A curve over the values of a sweep: a family of variants that differ in one number."""

    title: str = Field(min_length=1, examples=["Size of a bucket"])
    """Name of the number, as an axis label."""
    unit: str = ""  # unit of the number; empty for a count
    summary: str = Field(min_length=1, examples=["How large should a bucket be?"])
    """The question that the family answers, in a sentence."""
    scale: Literal["log", "linear"] = "log"  # scale of the axis
    parent: Name | None = None  # which of the sweep's parents the curve uses; null for the first
    reference: Annotated[str, _with("value")] = Field(min_length=1, examples=["ddp"])
    """Variant that the members are compared with; with {value}, the one with the same value."""
    others: list[Member] = Field(default_factory=list)
    """Variants for values that the sweep does not create, or replacing those it does."""


class Sweep(Schema):
    """One technique with several values: the variants of a field, and the curves over them."""

    parents: list[Name] = Field(min_length=1)  # variants to change: each one with each value
    names: Annotated[str, _with("parent", "value")]
    """Names of the variants: {value} stands for the value, {parent} for the parent."""
    field: str = Field(pattern=r"^\w+(\.\w+)+$")
    """Field of the run spec that takes the values, such as parallel.bucket_mb."""
    values: list[Annotated[SweepValue, BeforeValidator(_number_alone)]] = Field(min_length=1)
    """The values: numbers, or sections that say how they are written."""
    change: Change = Field(default_factory=dict)  # additional changes, the same for all values
    equivalence: AnyEquivalence | None = None
    """How closely they must train the same model; null to derive it from their parents."""
    tests: list[str] | None = None
    """Items of the original study that they relate to; null for those of their parents."""
    summary: Annotated[str, _with("parent", "value")] = Field(min_length=1)
    """The change and its purpose; {parent} stands for the summary of the parent."""
    curves: dict[Name, Curve] = Field(default_factory=dict)
    """Curves of the report over the values, by family name."""

    @field_validator("names")
    @classmethod
    def _names_differ(cls, names: str, info: ValidationInfo) -> str:
        needed = ["{value}"] + ["{parent}"] * (len(info.data.get("parents", [])) > 1)
        for place in needed:
            if place not in names:
                remedy = f"write {place} where they differ"
                raise refusal("gives several variants the same name", remedy)
        return names

    @field_validator("values")
    @classmethod
    def _values_differ(cls, values: list[SweepValue]) -> list[SweepValue]:
        seen = set()
        for value in values:
            if value.value in seen:
                raise refusal(f"holds the value {value.value} twice", "give each value once")
            seen.add(value.value)
        return values


Variants = dict[Name, Variant | Composition | Sweep]
"""config/variants.yaml: variants and compositions by name, and sweeps by name."""
