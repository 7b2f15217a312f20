"""The pairs that are compared, their jobs, and the targets of a study."""

import random
from typing import Any

import pytest

from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import (
    TurnGroup,
    check_targets,
    compared_pairs,
    known_targets,
    turn_groups,
)
from transformer_core.study.resolve import check_study


def study(**fields: Any) -> Study:
    return Study.model_validate(
        {"name": "s", "variants": ["a", "b", "single"], "baseline": "single"} | fields
    )


def test_pairs_with_the_baseline_come_before_others():
    asked, usual = study(comparisons=[["b", "a"]]), [("a", "single"), ("b", "single"), ("b", "a")]
    assert compared_pairs(asked) == usual
    extra = [("a", "b"), ("a", "single"), ("b", "a")]
    assert compared_pairs(asked, extra) == [*usual, ("a", "b")]
    assert compared_pairs(study(variants=["single"])) == []


PAIRS = [("a", "single"), ("b", "single"), ("b", "a"), ("c", "single"), ("d", "single")]


def test_the_same_turns_serve_comparisons_among_the_variants_of_a_job():
    assert turn_groups([*PAIRS, ("d", "b")], together=4) == {
        "single/a": TurnGroup(
            ("single", "a", "b", "d"),
            (("a", "single"), ("b", "a"), ("b", "single"), ("d", "b"), ("d", "single")),
        ),
        "single/c": TurnGroup(("single", "c"), (("c", "single"),)),
    }


@pytest.mark.parametrize("together", [2, 5])
def test_the_order_of_variants_changes_no_turns(together):
    """With as many jobs as comparisons, or one."""
    found = turn_groups(PAIRS, together)
    assert turn_groups(PAIRS[::-1], together) == found
    without = turn_groups([pair for pair in PAIRS if "a" not in pair], 2)
    assert without.items() <= turn_groups(PAIRS, 2).items()


def test_comparisons_that_fit_into_no_job_get_their_own():
    linked = [*PAIRS[:2], ("c", "single"), ("b", "a"), ("c", "b"), ("e", "a")]
    assert turn_groups(linked, together=3) == {
        "single/a": TurnGroup(("single", "a", "b"), tuple(sorted(PAIRS[:3]))),
        "single/c": TurnGroup(("single", "c"), (("c", "single"),)),
        "b/c": TurnGroup(("b", "c"), (("c", "b"),)),
        "a/e": TurnGroup(("a", "e"), (("e", "a"),)),
    }


@pytest.mark.parametrize("together", range(2, 9))
def test_every_comparison_has_one_job_and_no_job_is_too_large(together):
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


def test_pairs_alone():
    for together, alone in ((2, []), (9, ["a", "b", "c", "d"])):
        found = turn_groups(PAIRS, together, alone).values()
        assert [group.pairs for group in found] == [(pair,) for pair in PAIRS]
        assert [group.sides for group in found] == [(b, a) for a, b in PAIRS]
    # A variant that must be alone does not separate the others.
    found = turn_groups(PAIRS, together=4, alone=["b"])
    assert found["single/a"].sides == ("single", "a", "c", "d")
    assert found["single/b"].sides == ("single", "b")


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


def test_settings_of_measurements_are_not_part_of_a_run_spec():
    """A change of them would repeat every training."""
    others = {"comparison", "comparisons", "self_test", "profiling", "limits", "traces"}
    assert not others & set(RunSpec.model_fields)


MINE = {"name": "mine", "variants": ["single", "ddp"], "repeats": 2}
WITH_TRACES = MINE | {"traces": {"other": ["a.sqlite"]}}
KNOWN = known_targets(check_study(WITH_TRACES, "study"), figures=["speedup"], tables=["variants"])


def test_every_variant_and_repeat_is_a_target():
    assert len(KNOWN) == len(set(KNOWN))
    asked = ["results/report.html", "all", "results/runs/ddp/spec.json"]
    check_targets(["--cores", "2", *asked, "results/runs/ddp/repeat-2/metrics.json"], KNOWN)
    check_targets(["--report", "results/of_snakemake.html"], KNOWN)
    # Traces have profiles like variants, but are not captured.
    profiles = [f"results/profiles/{name}/breakdown.json" for name in ("single", "other")]
    assert {*profiles, "results/profiles/single/capture.json"} <= set(KNOWN)
    assert "results/profiles/other/capture.json" not in KNOWN


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("results/runs/dpp/metrics.json", "results/runs/ddp/metrics.json"),
        ("results/runs/ddp/repeat-3/metrics.json", "results/runs/ddp/repeat-2/metrics.json"),
        ("results/data/gramar/tokenizer.json", "results/data/grammar/tokenizer.json"),
        ("results/figures/speedupp.svg", "results/figures/speedup.svg"),
        ("results/tables/variant.csv", "results/tables/variants.csv"),
        ("results/report.htm", "results/report.html"),
        ("results/equivalence/dpp.json", "results/equivalence/ddp.json"),
        ("results/profiles/othr/breakdown.json", "results/profiles/other/breakdown.json"),
    ],
)
def test_a_mistyped_target(asked, near):
    problem = problem_of(check_targets, ["--cores", "all", asked], KNOWN)
    assert problem.value == asked
    assert near in problem.remedy


def test_the_largest_batch_of_another_variant_has_to_be_listed():
    asked = "results/memory/largest_batch/ddp.json"
    study = MINE | {"memory": {"largest_batch": {"variants": ["single"]}}}
    known = known_targets(check_study(study, "study"), figures=[], tables=[])
    problem = problem_of(check_targets, [asked], known)
    assert "list ddp in memory.largest_batch.variants of the study" in problem.remedy
    assert "did you mean results/memory/largest_batch/single.json" in problem.remedy
