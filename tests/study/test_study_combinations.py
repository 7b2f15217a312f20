"""Combinations of variants: own changes laid over one another, conflicts refused."""

from typing import Any

import pytest

from schemas.config.measurement import Statistical, Tolerance
from schemas.config.study import Study
from schemas.config.variants import Variant
from transformer_core.study.resolve import combine, equivalence_of, exclusions, resolve


def variant(change: dict[str, Any], parent: str | None = "single", **more: Any) -> Variant:
    return Variant.model_validate(
        {"parent": parent, "change": change, "summary": "For a test."}
        | {"equivalence": "tolerance"}
        | more
    )


VARIANTS = {
    "single": variant({"parallel": {"kind": "single"}}, None),
    "bf16": variant({"training": {"precision": {"kind": "bf16"}}}, equivalence="statistical"),
    "fp16": variant({"training": {"precision": {"kind": "fp16"}}}, equivalence="statistical"),
    "rare_log": variant({"training": {"log_every": 50}}, equivalence="bitwise"),
    "ddp": variant({"parallel": {"kind": "ddp"}}, None),
    "view": variant({"parallel": {"bucket_view": True}}, "ddp"),
    "same": variant({"training": {"seed": 1}}),
}
STUDY = Study(
    name="test", variants=list(VARIANTS), baseline="single", training={"steps": 100, "seed": 1}
)


def test_a_combination_takes_the_own_change_of_every_part():
    spec = combine(STUDY, VARIANTS, ("ddp", "view", "bf16"), "best")
    assert spec.variant == "best"
    assert spec.parallel.model_dump() == resolve(STUDY, "view", VARIANTS).parallel.model_dump()
    assert spec.training.precision.kind == "bf16"


@pytest.mark.parametrize("parts", [("bf16", "fp16"), ("view",), ("view", "bf16")])
def test_changes_that_do_not_fit_together_are_no_combination(parts):
    assert combine(STUDY, VARIANTS, parts, "best") is None


def test_no_parts_are_the_baseline_under_another_name():
    spec = combine(STUDY, VARIANTS, (), "best")
    assert spec == resolve(STUDY, "single", VARIANTS).model_copy(update={"variant": "best"})


def test_parts_that_set_a_field_differently_exclude_each_other():
    found = exclusions(VARIANTS, ["bf16", "fp16", "rare_log", "ddp", "view"])
    assert found["bf16"] == {"fp16"}
    assert found["fp16"] == {"bf16"}
    assert found["ddp"] == found["view"] == found["rare_log"] == frozenset()


def test_the_loosest_part_says_how_equal_a_combination_must_be():
    assert isinstance(equivalence_of(VARIANTS, ("rare_log", "bf16", "ddp")), Statistical)
    assert isinstance(equivalence_of(VARIANTS, ("rare_log",)), Tolerance)
    assert isinstance(equivalence_of(VARIANTS, ("rare_log", "ddp")), Tolerance)
