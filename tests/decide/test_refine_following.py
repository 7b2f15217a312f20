"""Time that a study reserves for the jobs after its comparisons."""

from pathlib import Path

import pytest

from schemas.config.study import Study
from transformer_core.common.study_clock import JobTimes
from transformer_core.common.yaml_files import read_mapping
from transformer_core.decide.refine import FOLLOWING, kept_for_the_rest
from transformer_core.study.staleness import RULES

STUDY = Study.model_validate(
    read_mapping(Path(__file__).resolve().parents[2] / "config/config.yaml")
)
WITHOUT_QUALITY = STUDY.model_copy(update={"quality": None})


def times(seconds: float) -> JobTimes:
    return JobTimes(count=1, seconds=seconds, share=1.0)


def test_quality_trainings_are_reserved_for_too():
    least = kept_for_the_rest(WITHOUT_QUALITY, {})
    assert kept_for_the_rest(STUDY, {}) == pytest.approx(least + STUDY.quality.budget / 2)
    timed = {"quality": times(40.0)}
    assert kept_for_the_rest(STUDY, timed) == pytest.approx(least + 40.0)
    assert kept_for_the_rest(WITHOUT_QUALITY, timed) == pytest.approx(least)


def test_measured_times_replace_guesses():
    guessed, budget = kept_for_the_rest(WITHOUT_QUALITY, {}), STUDY.search.budget
    assert guessed > budget
    assert FOLLOWING.keys() <= {*RULES}
    timed = {rule: times(2.0) for rule in FOLLOWING}
    assert kept_for_the_rest(WITHOUT_QUALITY, timed) == pytest.approx(2.0 * len(FOLLOWING))
