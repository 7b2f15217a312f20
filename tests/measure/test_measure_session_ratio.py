"""The ratio of a session and its error, against those of SciPy."""

import math

import numpy as np
import pytest
from scipy.stats import mstats

from schemas.results import Pair, Round, TurnWindow
from transformer_core.measure.session_ratio import TRIM, session_ratio


def rounds(ratios: list[float]) -> list[Round]:
    """A round for each ratio of throughputs."""
    return [
        Round(
            windows=[
                TurnWindow(
                    side=side, began=0.0, seconds=1.0, steps=1, tokens=round(tokens),
                    padded_tokens=1, input_wait_seconds=0.0,
                )
                for side, tokens in (("a", 1e9), ("b", 1e9 * ratio))
            ]
        )
        for ratio in ratios
    ]  # fmt: skip


@pytest.mark.parametrize("count", [4, 7, 10, 25])
def test_mean_and_error_are_those_of_scipy(count):
    ratios = np.exp(np.random.default_rng(count).standard_t(2, count) / 20)
    found = session_ratio(rounds(ratios.tolist()), Pair("b", "a"))
    values, cut = np.log(ratios), int(TRIM * count)
    limits = (cut / count * (1 + 1e-12),) * 2
    assert found.estimate == pytest.approx(float(mstats.trimmed_mean(values, limits)), abs=1e-8)
    assert found.error == pytest.approx(float(mstats.trimmed_stde(values, limits)), rel=1e-6)
    assert (found.freedom, found.pairs) == (count - 2 * cut - 1, count)


def test_of_few_rounds_none_is_left_out():
    """Where SciPy's function fails."""
    found = session_ratio(rounds([1.1, 1.2, 1.4]), Pair("b", "a"))
    values = np.log([1.1, 1.2, 1.4])
    assert found.estimate == pytest.approx(values.mean(), abs=1e-8)
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(3), rel=1e-6)
    assert found.freedom == 2


def test_one_round_has_no_error():
    found = session_ratio(rounds([1.5]), Pair("b", "a"))
    assert found.estimate == pytest.approx(math.log(1.5))
    assert math.isnan(found.error)
