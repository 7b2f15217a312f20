"""Targets and the owner of a results folder."""

from pathlib import Path

import pytest

from schemas.config.study import Study
from schemas.errors import ConfigError
from transformer_core.study.targets import check_owner, check_targets, known_targets

STUDY = Study.model_validate({"name": "mine", "variants": ["single", "ddp"], "repeats": 2})


def test_every_variant_and_repeat_is_a_target() -> None:
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
def test_a_mistyped_target(asked: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_targets(["--cores", "all", asked], known_targets(STUDY))
    (problem,) = caught.value.problems
    assert problem.value == asked
    assert near in problem.remedy


def test_what_is_known_or_not_ours_passes() -> None:
    known = known_targets(STUDY)
    check_targets(
        ["--cores", "2", "results/report.html", "all", "results/runs/ddp/spec.json"], known
    )


def test_the_results_of_another_study_are_kept(tmp_path: Path) -> None:
    marker = tmp_path / ".study"
    check_owner(STUDY, marker, "my.yaml")
    marker.write_text("mine\n")
    check_owner(STUDY, marker, "my.yaml")
    marker.write_text("theirs\n")
    with pytest.raises(ConfigError) as caught:
        check_owner(STUDY, marker, "my.yaml")
    (problem,) = caught.value.problems
    assert "'theirs'" in problem.message
    assert "mv" in problem.remedy
    check_owner(STUDY.model_copy(update={"replace_results": True}), marker, "my.yaml")
