import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.results import Interval
from transformer_core.report.kit import formats


def test_numbers_durations_and_sizes():
    numbers = {1234: "1,234", 1234.56: "1,235", 0: "0", 0.012345: "0.0123", 31.415: "31.4"}
    numbers |= {-0.5: "-0.500", float("inf"): "inf"}
    assert {value: formats.plain_number(value, 3) for value in numbers} == numbers
    assert formats.plain_number(2.3456, 4) == "2.346"
    durations = {0.0: "0 ms", 0.00000042: "0.42 µs", 0.000468: "468 µs", 0.00327: "3.3 ms"}
    durations |= {0.0345: "34 ms", 12.34: "12.3 s", 119: "119.0 s", 150: "2.5 min", 9000: "2.5 h"}
    assert {value: formats.plain_duration(value) for value in durations} == durations
    sizes = {
        12: "12 B",
        1536: "1.5 KiB",
        345 << 20: "345 MiB",
        -20672: "-20.2 KiB",
        80 << 30: "80.0 GiB",
    }
    assert {value: formats.plain_size(value) for value in sizes} == sizes


def test_parts_of_a_step_have_no_more_digits_than_a_profile_supports():
    parts = {-25.7012: "-25.7", 0.00487: "0.0", -0.000202: "0.0", 1168.4: "1,168.4"}
    assert {ms: re.sub("<.*?>", "", formats.of_step(ms, 168.1, 97.7)) for ms in parts} == parts
    assert ">0.0123<" in formats.of_step(0.01234, 0.9, 0), "a step of a microsecond device"
    assert ">1<" in formats.of_step(1.2, 2400.0)
    assert ">0.000<" in formats.of_step(0.0, 0.0)


def test_exact_value_is_kept_beside_the_rounded_one():
    assert formats.ratio(1.6181) == '<data value="1.6181" title="1.6181">1.62×</data>'
    assert ">0.0042×<" in formats.ratio(0.0042)
    assert ">0.00×<" in formats.ratio(0.0)
    assert formats.percent(0.0712) == '<data value="0.0712" title="0.0712">7.1 %</data>'
    assert ">0.0 %<" in formats.percent(-1e-9), "no negative zero"
    assert formats.duration(2.25) == '<data value="2.25" title="2.25 s">2.2 s</data>'
    assert 'title="1536 bytes"' in formats.size(1536)


@pytest.mark.parametrize("show", formats.FILTERS.values(), ids=formats.FILTERS)
def test_missing_is_a_dash_and_never_zero(show):
    assert callable(show)
    assert show(None) == formats.MISSING
    assert "0" not in formats.MISSING


@pytest.mark.parametrize(
    ("show", "median", "low", "high", "shown"),
    [
        (formats.interval, 16200.4, 15800.2, 16600.9, (">16,200</data>", "[15,800, 16,601]")),
        (formats.ratio_interval, 1.62, 1.58, 1.66, (">1.62×</data>", "[1.58, 1.66]")),
        # Two decimals would give [1.00, 1.61] and [1.00, 1.25], whatever the verdicts are.
        (formats.ratio_interval, 1.266, 0.998, 1.606, (">1.266×</data>", "[0.998, 1.606]")),
        (formats.ratio_interval, 1.117, 1.0002, 1.247, (">1.1170×</data>", "[1.0002, 1.2470]")),
        (formats.ratio_interval, 1.0, 1.0, 1.0, (">1.000×</data>", "[1.000, 1.000]")),
        # A third decimal shows that it is not 1.
        (formats.ratio_interval, 1.004, 1.002, 1.006, (">1.004×</data>", "[1.002, 1.006]")),
        # A small one is not 0.
        (formats.ratio_interval, 0.00031, 0.00031, 0.00031, (">0.00031×</data>", "[0.00031, 0.0")),
        (formats.ratio_interval, 0.02, 0.011, 0.033, (">0.020×</data>", "[0.011, 0.033]")),
    ],
)
def test_intervals(show, median, low, high, shown):
    html = show(Interval(median=median, low=low, high=high, samples=40))
    assert [words for words in (*shown, "40 samples") if words not in html] == []


@given(st.floats(1e-9, 1e15))
def test_rounding_stays_close(value):
    shown = float(formats.plain_number(value, 4).replace(",", ""))
    assert shown == pytest.approx(value, rel=6e-4)
