"""Numbers with units, as text: durations and bandwidths."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas.base import MOST_SECONDS, seconds_of
from schemas.config.parallel import Bandwidth, show_bandwidth
from schemas.config.study import Study
from tests.refusals import problem_in


def study(**sections: Any) -> dict[str, Any]:
    return {"name": "s", "variants": ["one"], **sections}


@pytest.mark.parametrize(
    ("text", "canonical", "seconds"),
    [
        ("10min", "10 min", 600.0),
        (" 1h ", "1 h", 3_600.0),
        ("60 min", "1 h", 3_600.0),
        ("0.5 h", "30 min", 1_800.0),
        ("1.5 s", "1.5 s", 1.5),
        ("168h", "168 h", MOST_SECONDS),
    ],
)
def test_one_duration_is_written_in_one_way(text, canonical, seconds):
    for same in (text, canonical):
        assert Study.model_validate(study(time=same)).time == canonical
        assert seconds_of(same) == seconds


@pytest.mark.parametrize(
    "text", ["10", 10, "", "min", "-5 s", "1e3 s", "5 days", "1:30", "5 sm", []]
)
def test_invalid_durations_are_refused_with_an_example(text):
    problem = problem_in(Study, study(time=text))
    assert (problem.field, problem.message) == ("time", "is not a duration")
    assert "10 min" in problem.remedy


@pytest.mark.parametrize("text", ["0 s", "0.5 s", "169 h", "999999 h"])
def test_durations_have_bounds(text):
    assert problem_in(Study, study(time=text)).remedy == "give a duration from 1 s to 168 h"
    assert Study.model_validate(study(time=None)).time is None
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of("soon")


@pytest.mark.parametrize(
    ("given", "bits", "shown"),
    [
        ("100Mbit/s", 1e8, "100 Mbit/s"),
        ("1 Gbit/s", 1e9, "1 Gbit/s"),
        ("2.5Gbit/s", 2.5e9, "2.5 Gbit/s"),
        ("64kbit/s", 64e3, "64 kbit/s"),
        (8.0, 8.0, "8 bit/s"),
    ],
)
def test_bandwidths_are_bits_per_second_and_shown_in_the_unit_that_suits_them(given, bits, shown):
    assert TypeAdapter(Bandwidth).validate_python(given) == bits
    assert show_bandwidth(bits) == shown


@pytest.mark.parametrize("text", ["100", "100Mbps", "100 MB/s", "-1Mbit/s", "Mbit/s", "0bit/s"])
def test_invalid_bandwidths_are_refused_with_an_example(text):
    problem = problem_in(Study, study(machine={"nodes": 2, "link": {"bandwidth": text}}))
    assert problem.field == "machine.link.bandwidth"
    assert "Mbit/s" in problem.remedy or "above 0" in problem.remedy
