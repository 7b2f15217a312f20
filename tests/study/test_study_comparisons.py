"""Which variants are compared with which."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.measurement import Comparing
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import TurnGroup, compared_pairs, turn_groups


def study(**fields: Any) -> Study:
    return Study.model_validate(
        {"name": "s", "variants": ["a", "b", "single"], "baseline": "single"} | fields
    )


def test_every_variant_with_the_baseline_then_what_is_asked_for():
    asked = study(comparisons=[["b", "a"]])
    assert compared_pairs(asked) == [("a", "single"), ("b", "single"), ("b", "a")]
    extra = [("a", "b"), ("a", "single"), ("b", "a")]
    assert compared_pairs(asked, extra) == [
        ("a", "single"),
        ("b", "single"),
        ("b", "a"),
        ("a", "b"),
    ]


def test_the_baseline_alone_is_compared_with_nothing():
    assert compared_pairs(study(variants=["single"])) == []


PAIRS = [("a", "single"), ("b", "single"), ("b", "a"), ("c", "single"), ("d", "single")]


def test_a_job_has_as_many_variants_as_there_is_room_for():
    with_single = [("a", "single"), ("b", "single"), ("c", "single"), ("d", "single")]
    assert turn_groups(with_single, together=4) == {
        "single/1": TurnGroup(("single", "a", "b", "c"), tuple(with_single[:3])),
        "single/2": TurnGroup(("single", "d"), (("d", "single"),)),
    }


def test_the_same_turns_serve_comparisons_among_the_variants_of_a_job():
    linked = [*PAIRS, ("d", "b")]
    assert turn_groups(linked, together=4) == {
        "single/1": TurnGroup(
            ("single", "a", "b", "d"),
            (("a", "single"), ("b", "single"), ("b", "a"), ("d", "single"), ("d", "b")),
        ),
        "single/2": TurnGroup(("single", "c"), (("c", "single"),)),
    }


def test_comparisons_that_fit_into_no_job_have_their_own():
    linked = [("a", "single"), ("b", "single"), ("c", "single"), ("b", "a"), ("c", "b"), ("e", "a")]
    assert turn_groups(linked, together=3) == {
        "single/1": TurnGroup(("single", "a", "b"), (("a", "single"), ("b", "single"), ("b", "a"))),
        "single/2": TurnGroup(("single", "c"), (("c", "single"),)),
        "b/1": TurnGroup(("b", "c"), (("c", "b"),)),
        "a/1": TurnGroup(("a", "e"), (("e", "a"),)),
    }


@pytest.mark.parametrize("together", range(2, 9))
def test_every_comparison_is_made_once_and_no_job_is_too_large(together):
    rng = random.Random(together)
    names = [f"v{number}" for number in range(12)]
    for _ in range(50):
        drawn = [(rng.choice(names), rng.choice(names)) for _ in range(20)]
        pairs = list(dict.fromkeys((one, two) for one, two in drawn if one != two))
        found = turn_groups(pairs, together, alone=rng.choices(names, k=2))
        assert sorted(pair for group in found.values() for pair in group.pairs) == sorted(pairs)
        for group in found.values():
            assert len(set(group.sides)) == len(group.sides) <= together
            assert {name for pair in group.pairs for name in pair} == set(group.sides)


@pytest.mark.parametrize(("together", "alone"), [(2, []), (9, ["a", "b", "c", "d"])])
def test_pairs_by_themselves(together, alone):
    found = turn_groups(PAIRS, together, alone)
    assert [group.pairs for group in found.values()] == [(pair,) for pair in PAIRS]
    assert [group.sides for group in found.values()] == [(b, a) for a, b in PAIRS]


def test_one_that_must_be_alone_does_not_part_the_others():
    found = turn_groups(PAIRS, together=4, alone=["b"])
    assert found["single/1"].sides == ("single", "a", "c", "d")
    assert found["single/2"].sides == ("single", "b")


@pytest.mark.parametrize(
    ("pair", "field", "words"),
    [
        (["bb", "a"], "bb", "did you mean b?"),
        (["a", "sinle"], "sinle", "did you mean single?"),
        (["a", "a"], "a", "is compared with itself"),
    ],
)
def test_a_wrong_pair_is_named(pair, field, words):
    asked = study(comparisons=[["a", "b"], pair])
    problem = problem_of(compared_pairs, asked, file="my.yaml")
    assert (problem.file, problem.value) == ("my.yaml", field)
    assert problem.field.startswith("comparisons[1]")
    assert words in str(problem)


@pytest.mark.parametrize(
    ("field", "value"), [("pairs", 4), ("margin", 1.0), ("precision", 0.0), ("sessions_least", 0)]
)
def test_settings_that_cannot_work_are_refused(field, value):
    with pytest.raises(ValidationError, match=field):
        Comparing.model_validate({field: value})


def test_settings_of_measurements_are_no_part_of_a_run_spec():
    """Else every training would be made again when they change."""
    others = {"comparison", "comparisons", "self_test", "profiling", "limits", "traces"}
    assert not others & set(RunSpec.model_fields)
