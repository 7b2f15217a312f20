"""Targets: what a study has, and mistyped ones."""

import pytest

from schemas.config.study import Study
from tests.refusals import problem_of
from transformer_core.study.compared_pairs import check_targets, known_targets

STUDY = Study.model_validate({"name": "mine", "variants": ["single", "ddp"], "repeats": 2})


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
