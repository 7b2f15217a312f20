"""From the windows of a session to a ratio and its error."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_builders import window

from schemas.results import Pair, Round
from transformer_core.measure.session_ratio import log_ratios, session_ratio


def rounds(*ratios: float, base: float = 100.0, backwards: bool = False) -> list[Round]:
    """Rounds with these ratios, on a machine whose speed doubles from one to the next."""
    found = []
    for index, ratio in enumerate(ratios):
        speed = base * 2**index
        windows = [window("a", speed), window("b", speed * ratio)]
        found.append(Round(windows=windows[::-1] if backwards else windows))
    return found


def test_a_drift_of_the_machine_cancels():
    steady = log_ratios(rounds(1.5, 1.5, 1.5), Pair("b", "a"))
    assert steady == pytest.approx([log(1.5)] * 3)
    assert log_ratios(rounds(1.5, backwards=True), Pair("b", "a")) == pytest.approx([log(1.5)])
    assert log_ratios(rounds(1.5), Pair("a", "b")) == pytest.approx([-log(1.5)])


def test_the_rate_counts_tokens_and_not_windows():
    half = window("b", 100.0).model_copy(update={"tokens": 500})
    (found,) = log_ratios([Round(windows=[window("a", 100.0), half])], Pair("b", "a"))
    assert found == pytest.approx(log(0.5))


def test_disturbed_windows_do_not_reach_the_ratio():
    clean = [1.5, 1.51, 1.49, 1.5, 1.505, 1.495, 1.5, 1.5]
    disturbed = [*clean[:-2], 0.2, 9.0]
    ratio = session_ratio(rounds(*disturbed), Pair("b", "a"))
    assert exp(ratio.estimate) == pytest.approx(1.5, rel=0.01)
    assert ratio.error < 0.02
    assert (ratio.pairs, ratio.freedom) == (8, 3)


@given(st.lists(st.floats(0.1, 10), min_size=5, max_size=12))
def test_the_other_way_round_is_the_reciprocal(ratios):
    there = session_ratio(rounds(*ratios), Pair("b", "a"))
    back = session_ratio(rounds(*ratios), Pair("a", "b"))
    assert back.estimate == pytest.approx(-there.estimate, abs=1e-9)
    assert back.error == pytest.approx(there.error, abs=1e-9)
