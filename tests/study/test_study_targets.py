"""Targets: what a study has, and mistyped ones."""

import pytest

from schemas.config.study import Study
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import check_targets, known_targets
from transformer_core.study.resolve import check_study

MINE = {"name": "mine", "variants": ["single", "ddp"], "repeats": 2}
STUDY = Study.model_validate(MINE)


def test_every_variant_and_repeat_is_a_target():
    known = known_targets(STUDY)
    assert "results/report.html" in known
    assert "results/runs/ddp/repeat-2/metrics.json" in known
    assert "results/runs/ddp/repeat-3/metrics.json" not in known
    assert len(known) == len(set(known))


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("results/runs/dpp/metrics.json", "results/runs/ddp/metrics.json"),
        ("results/runs/ddp/repeat-3/metrics.json", "results/runs/ddp/repeat-2/metrics.json"),
        ("results/data/gramar/tokenizer.json", "results/data/grammar/tokenizer.json"),
    ],
)
def test_a_mistyped_target(asked, near):
    problem = problem_of(check_targets, ["--cores", "all", asked], known_targets(STUDY))
    assert problem.value == asked
    assert near in problem.remedy


def test_what_is_known_or_not_ours_passes():
    known = known_targets(STUDY)
    check_targets(
        ["--cores", "2", "results/report.html", "all", "results/runs/ddp/spec.json"], known
    )


def test_traces_are_targets_beside_the_variants():
    study = check_study(MINE | {"traces": {"other": ["a.sqlite"]}}, "study")
    known = known_targets(study)
    for name in ("single", "other"):
        assert f"results/profiles/{name}/breakdown.json" in known
    assert "results/profiles/single/capture.json" in known
    assert "results/profiles/other/capture.json" not in known
    problem = problem_of(check_targets, ["results/profiles/othr/breakdown.json"], known)
    assert "did you mean results/profiles/other/breakdown" in problem.remedy


@pytest.mark.parametrize(
    ("traces", "message", "remedy"),
    [
        ({"single": ["a.sqlite"]}, "is that of a variant", "choose another name"),
        ({"other": []}, "has no file for other", "name a file"),
    ],
)
def test_traces_that_cannot_be_read(traces, message, remedy):
    problem = problem_of(check_study, MINE | {"traces": traces}, "study")
    assert (problem.field, problem.remedy) == ("traces", remedy)
    assert message in problem.message
