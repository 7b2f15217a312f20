"""The ratio of a session and its error, from its windows; they agree with SciPy's."""

import math
from statistics import fmean

import numpy as np
import pytest
from pair_builders import window
from scipy.stats import mstats

from schemas.results import Pair, Round
from transformer_core.measure.session_ratio import TRIM, log_ratio_of, log_ratios, session_ratio
from transformer_core.measure.sessions import backwards

PAIR = Pair("b", "a")


def rounds(*ratios: float, backwards: bool = False) -> list[Round]:
    """Rounds with these ratios of throughputs, on a machine whose speed doubles from round to
    round."""
    found = []
    for index, ratio in enumerate(ratios):
        speed = 100.0 * 2**index
        windows = [window("a", speed), window("b", speed * ratio)]
        found.append(Round(windows=windows[::-1] if backwards else windows))
    return found


def test_a_drift_of_the_machine_cancels_and_the_rate_counts_tokens():
    assert log_ratios(rounds(1.5, 1.5, 1.5), PAIR) == pytest.approx([math.log(1.5)] * 3)
    assert log_ratios(rounds(1.5, backwards=True), PAIR) == pytest.approx([math.log(1.5)])
    assert log_ratios(rounds(1.5), Pair("a", "b")) == pytest.approx([-math.log(1.5)])
    # The rate counts tokens.
    half = window("b", 100.0).model_copy(update={"tokens": 500})
    (found,) = log_ratios([Round(windows=[window("a", 100.0), half])], PAIR)
    assert found == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("count", [5, 6, 8])
def test_a_drift_that_all_sessions_have_cancels(count):
    """The machine becomes a fifth slower in every session. With the same order in all, five rounds
    were 2 % off."""
    found = []
    for session in (1, 2):
        rounds, turns = list[Round](), iter(np.exp(-0.2 * np.arange(2 * count) / (2 * count)))
        for number in range(count):
            sides = "ba" if backwards(session, number) else "ab"
            rounds.append(Round(windows=[window(side, 100 * next(turns)) for side in sides]))
        found.append(session_ratio(rounds, PAIR).estimate)
    assert fmean(found) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("count", [4, 7, 10, 25])
def test_mean_and_error_are_those_of_scipy(count):
    ratios = np.exp(np.random.default_rng(count).standard_t(2, count) / 20)
    found = session_ratio(rounds(*ratios.tolist()), PAIR)
    values, cut = np.log(ratios), int(TRIM * count)
    limits = (cut / count * (1 + 1e-12),) * 2
    assert found.estimate == pytest.approx(float(mstats.trimmed_mean(values, limits)), abs=1e-8)
    assert found.error == pytest.approx(float(mstats.trimmed_stde(values, limits)), rel=1e-6)
    assert (found.freedom, found.pairs) == (count - 2 * cut - 1, count)


def test_few_rounds_are_not_trimmed():
    """SciPy's function fails for them."""
    found = session_ratio(rounds(1.1, 1.2, 1.4), PAIR)
    values = np.log([1.1, 1.2, 1.4])
    assert found.estimate == pytest.approx(values.mean(), abs=1e-8)
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(3), rel=1e-6)
    assert found.freedom == 2


def test_one_round_has_no_error():
    found = session_ratio(rounds(1.5), PAIR)
    assert found.estimate == pytest.approx(math.log(1.5))
    assert math.isnan(found.error)


def test_each_process_of_the_reference_gives_a_trimmed_mean():
    logs = np.random.default_rng(1).standard_t(2, (7, 3)) / 20
    made = []
    for logs_of_round in logs:
        of_processes = [10.0 * math.exp(value) for value in logs_of_round]
        reference = window("a", 100.0).model_copy(update={"of_processes": of_processes})
        made.append(Round(windows=[reference, window("b", 100.0)]))
    found = session_ratio(made, PAIR)
    each = [session_ratio(rounds(*np.exp(one).tolist()), PAIR) for one in logs.T]
    assert found.estimate == pytest.approx(fmean(one.estimate for one in each))
    # All of them share the windows of the variant.
    assert found.error <= fmean(one.error for one in each)
    assert (found.freedom, found.pairs, found.processes) == (2, 7, 3)
    assert log_ratios(made, PAIR) == pytest.approx(logs.mean(axis=1).tolist())


def test_disturbances_that_lengthen_windows_favour_no_side():
    """With several processes of the reference, too, whose mean time is less skewed."""
    times = np.random.default_rng(2).standard_exponential((2_000, 8, 4))
    found = [log_ratio_of(PAIR, session[:, 1:] - session[:, :1]) for session in times]
    estimates = np.array([one.estimate for one in found])
    deviation = estimates.std()
    assert abs(estimates.mean()) < 4 * deviation / math.sqrt(len(estimates))
    errors = np.array([one.error for one in found])
    assert math.sqrt((errors**2).mean()) == pytest.approx(deviation, rel=0.15)
