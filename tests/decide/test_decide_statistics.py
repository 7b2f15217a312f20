"""Intervals that hold all at once, in simulated studies."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from schemas.results import LogRatio
from transformer_core.decide.intervals import (
    CONFIDENCE,
    _moderated,
    between_sessions,
    simultaneous_ratios,
)
from transformer_core.measure.session_ratio import TRIM


def study(
    random: np.random.Generator,
    noise: Sequence[float],
    between: float,
    sessions: int = 2,
    pairs: int = 8,
    truth: float = 0.0,
    reference: str = "reference",
) -> list[list[LogRatio]]:
    """A comparison for each of ``noise``, the standard deviation of its rounds; heavy tails.

    ``between`` is the standard deviation of the sessions, ``truth`` the logarithm of the ratio.
    """
    shape = (len(noise), sessions)
    values_csp = truth + between * random.normal(size=(*shape, 1))
    rounds_csp = random.standard_t(4, size=(*shape, pairs)) / np.sqrt(2)
    values_csp = np.sort(values_csp + np.array(noise)[:, None, None] * rounds_csp)
    # Like session_ratio for one session, but for all at once.
    cut = int(TRIM * pairs)
    lowest, highest = values_csp[..., cut, None], values_csp[..., pairs - cut - 1, None]
    centers_cs = values_csp[..., cut : pairs - cut].mean(axis=2)
    spreads_cs = np.clip(values_csp, lowest, highest).std(axis=2, ddof=1)
    errors_cs = spreads_cs / ((1 - 2 * cut / pairs) * np.sqrt(pairs))
    return [
        [
            LogRatio("variant", reference, float(c), float(e), pairs - 2 * cut - 1, pairs)
            for c, e in zip(*comparison, strict=True)
        ]
        for comparison in zip(centers_cs, errors_cs, strict=True)
    ]


ALIKE = [0.03] * 13
STUDIES = 200
MOST_FAILED = stats.binom.ppf(0.99, STUDIES, 1 - CONFIDENCE)
"""Allowed number of studies with an interval that misses: 5 % of all, plus chance."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "between", "sessions", "pairs"),
    [
        (ALIKE, 0.0, 2, 6),
        (ALIKE, 0.03, 5, 5),
        ([0.03] * 12 + [0.12], 0.01, 2, 8),
        ([0.03], 0.02, 5, 5),
    ],
)
def test_all_intervals_of_a_study_hold_at_once(noise, between, sessions, pairs):
    random, failed = np.random.default_rng(5), 0
    for _ in range(STUDIES):
        intervals = simultaneous_ratios(study(random, noise, between, sessions, pairs))
        failed += any(interval.low > 1 or interval.high < 1 for interval in intervals)
    assert failed <= MOST_FAILED


def test_many_short_sessions_resolve_more_than_few_long_ones():
    random = np.random.default_rng(9)

    def width(sessions: int, pairs: int) -> float:
        found = [
            np.log(interval.high / interval.low)
            for _ in range(20)
            for interval in simultaneous_ratios(study(random, [0.05] * 7, 0.02, sessions, pairs))
        ]
        return float(np.median(found))

    assert width(2, 30) > 1.5 * width(3, 20) > 1.5 * width(5, 12)


def test_a_real_difference_is_found():
    random = np.random.default_rng(6)
    found = [
        interval.high < 1
        for _ in range(40)
        for interval in simultaneous_ratios(study(random, ALIKE, 0.003, 4, truth=np.log(1 / 1.06)))
    ]
    assert np.mean(found) > 0.95


def test_errors_are_moderated_the_more_the_more_alike_they_are():
    random = np.random.default_rng(8)

    def spread_of_widths(noise: Sequence[float]) -> float:
        """Standard deviation of the logarithm of the widths of equally noisy comparisons."""
        # A single session, so that only the errors of windows decide.
        intervals = simultaneous_ratios(study(random, noise, 0.0, sessions=1, pairs=6))
        widths = [np.log(interval.high / interval.low) for interval in intervals[:13]]
        return float(np.std(np.log(widths)))

    alike = np.mean([spread_of_widths(ALIKE) for _ in range(20)])
    among_others = np.mean([spread_of_widths(ALIKE + [0.3] * 13) for _ in range(20)])
    # Six windows alone would scatter by more than a third.
    assert 1.3 * alike < among_others < 0.3


def test_moderated_errors_weigh_the_usual_one_as_the_model_that_drew_them():
    """The model of Smyth (2004): squared errors around 0.5, as scattered as with 8 degrees of freedom."""
    random = np.random.default_rng(9)
    own = np.full(40_000, 6.0)
    truth = 8 * 0.5 / random.chisquare(8, len(own))
    squares = truth * random.chisquare(6, len(own)) / 6
    found, freedom = _moderated(squares, own)
    assert freedom == pytest.approx(8 + own, rel=0.03)
    assert found == pytest.approx((8 * 0.5 + 6 * squares) / 14, rel=0.03)


def test_variance_between_sessions_is_estimated_for_each_reference():
    random = np.random.default_rng(7)
    many = study(random, [0.01] * 400, 0.02)
    none = study(random, [0.01] * 400, 0.0, reference="quiet")
    found = between_sessions([*many, *none])
    assert found["reference"].variance == pytest.approx(0.02**2, rel=0.2)
    assert found["quiet"].variance < 0.002**2
    alone = between_sessions([[LogRatio("variant", "reference", 0.1, 0.01, 5, 8)]])
    assert alone == {"reference": (0.0, 0.0)}


SHARED = {"one": (0.01, 16)}
UNLIKE = {"one": (0.01, 7), "two": (0.03, 3), "three": (0.01, 1)}
APART = {name: (0.03 if name == "c" else 0.01, 1) for name in "abcdef"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "share", "sessions", "processes"),
    [
        (SHARED, 0.9, 2, 1),
        (SHARED, 0.9, 5, 4),
        (UNLIKE, 0.9, 4, 1),
        (UNLIKE, 0.9, 5, 4),
        (UNLIKE, 0.1, 4, 1),
        (APART, 0.9, 2, 1),
    ],
)
def test_intervals_hold_if_comparisons_share_sessions_and_references_differ(
    groups, share, sessions, processes
):
    """``groups`` maps each reference to the standard deviation of its ratios between sessions and
    the number of variants that take turns with it. A reference in one process causes ``share``
    of this variance itself, one in several ``processes`` that much divided by their number. True
    ratios are 1 and 1 / 1.05."""
    random, failed = np.random.default_rng(11), 0
    for _ in range(STUDIES):
        comparisons, truths = [], []
        for reference, (spread, variants) in groups.items():
            own = spread * np.sqrt(share / processes) * random.normal(size=sessions)
            for number in range(variants):
                truth = -np.log(1.05) * (number % 2)
                others = spread * np.sqrt(1 - share) * random.normal(size=sessions)
                seen = truth + others - own + 0.003 * random.normal(size=sessions)
                names = str(number), reference
                comparisons.append([LogRatio(*names, x, 0.003, 4, 5, processes) for x in seen])
                truths.append(np.exp(truth))
        found = simultaneous_ratios(comparisons)
        failed += any(not i.low <= t <= i.high for i, t in zip(found, truths, strict=True))
    assert failed <= MOST_FAILED


def test_a_comparison_whose_sessions_vary_more_than_others_has_a_wider_interval():
    """One in sixteen has five times the deviation between sessions."""
    random, missed, widths = np.random.default_rng(0), [], []
    deviations = np.array([0.05] + [0.01] * 15)
    for _ in range(200):
        values_cs = deviations[:, None] * random.normal(size=(16, 5))
        found = simultaneous_ratios(
            [[LogRatio("variant", "reference", x, 0.003, 4, 5) for x in row] for row in values_cs]
        )
        missed.append(not found[0].low <= 1 <= found[0].high)
        widths.append([np.log(interval.high / interval.low) for interval in found])
    # With the variance of all comparisons the first one missed in a fourth of studies.
    assert np.mean(missed) <= 0.12
    first, *others = np.median(widths, axis=0)
    assert first > 2 * np.median(others)


def exact(*values: float) -> list[LogRatio]:
    """Sessions with these logarithms of a counted ratio."""
    return [LogRatio("variant", "reference", value, 0.0, 0, 1) for value in values]


def test_without_an_error_the_spread_of_sessions_decides():
    still, moved = simultaneous_ratios([exact(0.1, 0.1), exact(0.0, 0.02)])
    # Both have the same variance, that of all sessions with this reference.
    assert still.high / still.low == pytest.approx(moved.high / moved.low)
    (alone,) = simultaneous_ratios([exact(0.1, 0.1, 0.1)])
    assert alone.low == pytest.approx(alone.high, rel=1e-12)
    with pytest.raises(ValueError, match="at least one session"):
        simultaneous_ratios([[]])


@pytest.mark.parametrize("moving", [(0.0, 0.1), (0.0, 0.05, 0.1)])
def test_constant_counts_do_not_narrow_the_interval_of_one_that_varies(moving):
    constant = [exact(*[0.1] * len(moving))] * 15
    moved = simultaneous_ratios([exact(*moving), *constant])[0]
    assert moved.low < 1 < 1.2 < moved.high


@pytest.mark.parametrize("sessions", [2, 3])
def test_one_constant_size_does_not_widen_the_intervals_of_those_that_vary(sessions):
    """A GPU may reserve the same memory in all sessions of one comparison, and not of others."""
    random = np.random.default_rng(0)
    varying = [exact(*random.normal(0.1, 0.002, sessions)) for _ in range(9)]
    without = simultaneous_ratios([exact(*random.normal(0.1, 0.002, sessions)), *varying])
    beside = simultaneous_ratios([exact(*[0.1] * sessions), *varying])
    for alone, found in zip(without[1:], beside[1:], strict=True):
        assert found.high / found.low < (alone.high / alone.low) ** 2


def test_without_an_error_rounding_does_not_matter():
    random = np.random.default_rng(0)
    for _ in range(100):
        pairs = random.normal(0.0, 0.01, (7, 2))
        found = between_sessions([exact(*map(float, pair)) for pair in pairs])
        expected = np.var(pairs, axis=1, ddof=1).mean()
        assert found["reference"].variance == pytest.approx(expected, rel=1e-6)


def test_two_noisy_sessions_give_an_interval_that_says_nothing():
    noisy = [LogRatio("variant", "reference", value, 0.1, 3, 6) for value in (0.0, 1.5)]
    (interval,) = simultaneous_ratios([noisy], looks=[5])
    assert interval.low < 1e-6 < 1e6 < interval.high


def test_the_level_is_corrected_for_the_number_of_comparisons():
    def width(count: int) -> float:
        # The same total number of sessions, so that only the level differs.
        known = LogRatio("variant", "reference", 0.0, 0.01, 10_000, 8)
        others = [[known] * 2] * (count - 1)
        interval = simultaneous_ratios([*others, [known] * (2 + 10_000 - count)])[0]
        return float(np.log(interval.high / interval.low))

    ratio = stats.norm.ppf((1 + 0.95 ** (1 / 20)) / 2) / stats.norm.ppf((1 + 0.95**0.5) / 2)
    assert width(20) / width(2) == pytest.approx(ratio, rel=0.01)
