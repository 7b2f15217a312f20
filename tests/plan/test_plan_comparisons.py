"""Which variants are compared with which."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.plan.compared_pairs import compared_pairs, turn_groups


def study(**fields: Any) -> Study:
    return Study.model_validate(
        {"name": "s", "variants": ["a", "b", "single"], "baseline": "single"} | fields
    )


def test_every_variant_with_the_baseline_then_what_is_asked_for() -> None:
    asked = study(comparisons=[["b", "a"]])
    assert compared_pairs(asked) == [("a", "single"), ("b", "single"), ("b", "a")]
    extra = [("a", "b"), ("a", "single"), ("b", "a")]
    assert compared_pairs(asked, extra) == [
        ("a", "single"),
        ("b", "single"),
        ("b", "a"),
        ("a", "b"),
    ]


def test_the_baseline_alone_is_compared_with_nothing() -> None:
    assert compared_pairs(study(variants=["single"])) == []


PAIRS = [("a", "single"), ("b", "single"), ("b", "a"), ("c", "single"), ("d", "single")]


def test_a_job_has_as_many_variants_as_there_is_room_for() -> None:
    assert turn_groups(PAIRS, together=4) == {
        "single/1": ("single", ["a", "b", "c"]),
        "a/1": ("a", ["b"]),
        "single/2": ("single", ["d"]),
    }


@pytest.mark.parametrize(("together", "alone"), [(2, []), (9, ["a", "b", "c", "d"])])
def test_pairs_by_themselves(together: int, alone: list[str]) -> None:
    found = turn_groups(PAIRS, together, alone)
    assert [(variant, reference) for reference, (variant,) in found.values()] == PAIRS


def test_one_that_must_be_alone_does_not_part_the_others() -> None:
    found = turn_groups(PAIRS, together=4, alone=["b"])
    assert found["single/1"] == ("single", ["a", "c", "d"])
    assert found["single/2"] == ("single", ["b"])


@pytest.mark.parametrize(
    ("pair", "field", "words"),
    [
        (["bb", "a"], "bb", "did you mean b?"),
        (["a", "sinle"], "sinle", "did you mean single?"),
        (["a", "a"], "a", "is compared with itself"),
    ],
)
def test_a_wrong_pair_is_named(pair: list[str], field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.yaml: comparisons\[1\]") as caught:
        compared_pairs(study(comparisons=[["a", "b"], pair]), file="my.yaml")
    (problem,) = caught.value.problems
    assert problem.value == field
    assert words in str(problem)


@pytest.mark.parametrize(
    ("field", "value"),
    [("pairs", 4), ("margin", 1.0), ("precision", 0.0), ("sessions_least", 0)],
)
def test_settings_that_cannot_work_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        Comparing.model_validate({field: value})


def test_settings_of_comparisons_are_no_part_of_a_run_spec() -> None:
    """Else every training would be made again when they change."""
    assert not {"comparison", "comparisons", "self_test"} & set(RunSpec.model_fields)
