"""Claims of a study about its techniques, and how each is tested."""

from typing import Annotated, Literal

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import Field, StringConstraints, field_validator, model_validator

from schemas.base import Count, Decimal, Fraction, Name, Schema, refusal
from schemas.results.common import Quantity

FILE_PATTERN = r"^results(/[\w{}-][\w.{}-]*)+\.json$"
"""A target below results/ that cannot escape it."""
_PLACE = "{variant}"

ClaimId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=32)]
"""A letter, then letters, digits and underscores."""

Direction = Literal["more", "less", "same", "not_more", "not_less"]
OneSided = Literal["more", "less", "not_more", "not_less"]


class Needs(Schema):
    """Requirements on the runs of a study for a test to be meaningful."""

    device: Literal["cpu", "cuda"] | None = None  # kind of device; null for any
    devices: Count = 1  # devices of one run


class Expected(Schema):
    """Expectations on a test's number besides its direction."""

    needs: Needs = Needs()
    """Requirements; unless they are met, the test says nothing about the claim."""
    at_least: Decimal | None = None  # smallest value that agrees with the claim; null for any
    at_most: Decimal | None = None  # largest value that agrees with the claim; null for any

    @model_validator(mode="after")
    def _can_be_refuted(self) -> "Expected":
        low, high = self.at_least, self.at_most
        if {low, high, getattr(self, "direction", None)} == {None}:
            message = "expects nothing of its number, so nothing could refute it"
            raise refusal(message, "add direction, at_least or at_most")
        if low is not None and high is not None and low > high:
            message = f"expects at least {low} and at most {high}"
            raise refusal(message, f"swap them: at_least: {high:g}")
        return self


class ComparisonTest(Expected):
    """One variant against another in one quantity; the value is the ratio of variant to
    reference."""

    kind: Literal["comparison"]
    variant: Name = Field(examples=["amp_bf16"])  # the variant
    reference: Name = Field(examples=["single"])  # the variant that it is compared with
    quantity: Quantity = "throughput"  # the quantity compared
    direction: Direction
    """How the variant compares with the reference, as in the comparison's verdict; not_more
    covers less, the same, and an interval that is undecided between these two."""


class CertificateTest(Schema):
    """Whether a variant trains the same model as the certificates' reference."""

    kind: Literal["certificate"]
    variant: Name = Field(examples=["amp_bf16"])  # the variant
    needs: Needs = Needs()
    """Requirements; unless they are met, the test says nothing about the claim."""


class Number(Schema):
    """A number, a list of numbers (repeats) or an interval in a result."""

    file: str = Field(pattern=FILE_PATTERN, examples=["results/memory/{variant}.json"])
    """The result, as a Snakemake target; {variant} stands for the variant."""
    variant: Name | None = Field(default=None, examples=["amp_bf16"])
    """The variant, if the file name contains {variant}."""
    value: str = Field(min_length=1, examples=["max(ranks[].peak_tensor_bytes)"])
    """Location in the file, as a JMESPath expression (jmespath.org)."""
    uncertainty: Fraction = 0.0
    """Relative uncertainty of the number when measured again, added to both ends of its
    interval; 0 for counts and for results that state their own interval."""

    @field_validator("value")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            jmespath.compile(value)
        except JMESPathError as error:
            message = " ".join(str(error).split())
            message = f"is not a JMESPath expression: {message}"
            raise refusal(message, "write it as on jmespath.org: repeats[0].steps") from None
        return value

    @model_validator(mode="after")
    def _variant_has_its_place(self) -> "Number":
        if (_PLACE in self.file) != (self.variant is not None):
            if self.variant is None:
                raise refusal("has a place for a variant, but no variant is given", "add variant")
            message = "names a variant for which the file has no place"
            raise refusal(message, f"write {_PLACE} in the file")
        return self

    @property
    def target(self) -> str:
        return self.file.replace(_PLACE, self.variant or "")


class MeasurementTest(Expected):
    """A number measured by some job, against a number from the claim."""

    kind: Literal["measurement"]
    what: str = Field(min_length=1, examples=["Peak of tensor memory"])
    """Name of the number, as shown in the report."""
    number: Number  # the number
    direction: OneSided | None = Field(default=None, examples=["less"])
    """Which side of ``than`` the number lies on; null if the claim is about size alone."""
    than: Decimal | None = Field(default=None, examples=[1e9])
    """The number that the direction is relative to."""

    @model_validator(mode="after")
    def _direction_has_a_number(self) -> "MeasurementTest":
        if (self.direction is None) != (self.than is None):
            missing, given = ("than", "direction") if self.than is None else ("direction", "than")
            raise refusal(f"has {given}, but no {missing}", f"add {missing}")
        return self


class RatioTest(Expected):
    """One measured number over another."""

    kind: Literal["ratio"]
    what: str = Field(min_length=1, examples=["Peak of tensor memory"])
    """Name of the ratio, as shown in the report."""
    numerator: Number  # the numerator
    denominator: Number  # the denominator
    factor: Number | None = None
    """A factor for the ratio, such as a bandwidth that turns FLOPs per byte into FLOPs per
    second; null for none."""
    direction: OneSided | None = Field(default=None, examples=["less"])
    """Which side of 1 the ratio lies on; null if the claim is about size alone."""


FamilyQuantity = Literal["throughput", "peak_memory", "traffic", "all_reduces"]


class TrendTest(Schema):
    """How a quantity changes over the values of a family."""

    kind: Literal["trend"]
    family: Name = Field(examples=["batch_size"])
    """The family: the curve of a sweep in config/variants.yaml."""
    quantity: FamilyQuantity = "throughput"
    """The quantity followed: ratios to the reference, or all-reduces per optimizer step."""
    direction: Literal["rises", "falls"]
    """Where the curve ends relative to its start. It may stay level on the way, but not turn
    back."""
    until_best: bool = False
    """Follow the curve only up to its largest value; anything may happen beyond."""
    needs: Needs = Needs()
    """Requirements; unless they are met, the test says nothing about the claim."""


ClaimTest = Annotated[
    ComparisonTest | CertificateTest | MeasurementTest | RatioTest | TrendTest,
    Field(discriminator="kind"),
]


class Claim(Schema):
    """One sentence, and the tests that it must pass."""

    statement: str = Field(min_length=1)  # the claim, in a sentence
    source: str = Field(min_length=1, examples=["A colleague"])
    """Who makes the claim, and where."""
    needs: Needs = Needs()
    """Requirements; unless they are met, no test says anything about the claim."""
    tests: list[ClaimTest] = Field(min_length=1)  # tests that must pass for the claim to hold


Claims = dict[ClaimId, Claim]  # config/claims.yaml: claims by id


def numbers_of(test: ClaimTest) -> list[Number]:
    """The numbers that a test reads from results."""
    return [value for _, value in test if isinstance(value, Number)]


def variants_of(test: ClaimTest) -> dict[str, str]:
    """The variants that a test names, by the field of the test that names them."""
    named = {field: value for field, value in test if field in ("variant", "reference")}
    named |= {f"{field}.variant": n.variant for field, n in test if isinstance(n, Number)}
    return {field: variant for field, variant in named.items() if variant is not None}
