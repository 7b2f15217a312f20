"""Durations with their unit, as text."""

import pytest

from schemas.base import MOST_SECONDS, seconds_of
from schemas.config.study import Study
from tests.refusals import problem_in


def timed(time: object) -> dict[str, object]:
    return {"name": "timed", "variants": ["single"], "time": time}


def time_of(time: object) -> str | None:
    return Study.model_validate(timed(time)).time


@pytest.mark.parametrize(
    ("text", "canonical", "seconds"),
    [
        ("90 s", "90 s", 90.0),
        ("10 min", "10 min", 600.0),
        ("10min", "10 min", 600.0),
        (" 1h ", "1 h", 3_600.0),
        ("60 min", "1 h", 3_600.0),
        ("0.5 h", "30 min", 1_800.0),
        ("1.5 s", "1.5 s", 1.5),
        ("604799 s", "604799 s", 604_799.0),
        ("168h", "168 h", MOST_SECONDS),
    ],
)
def test_one_duration_is_written_in_one_way(text, canonical, seconds):
    assert time_of(text) == time_of(canonical) == canonical
    assert seconds_of(text) == seconds_of(canonical) == seconds


@pytest.mark.parametrize(
    "text", ["10", 10, "", "min", "-5 s", "1e3 s", "5 days", "1:30", "5 sm", []]
)
def test_what_is_no_duration_is_refused_with_what_to_write(text):
    problem = problem_in(Study, timed(text))
    assert (problem.field, problem.message) == ("time", "is not a duration")
    assert "10 min" in problem.remedy


@pytest.mark.parametrize("text", ["0 s", "0.5 s", "169 h", "999999 h"])
def test_durations_have_bounds(text):
    problem = problem_in(Study, timed(text))
    assert problem.remedy == "give a duration from 1 s to 168 h"


def test_without_one_there_is_none():
    assert time_of(None) is None
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of("soon")
