"""Ratios with intervals that hold all at once.

Each session of a comparison gives the logarithm of a ratio, and its standard error from the
windows (see :mod:`transformer_core.measure.pairs`). A comparison has few windows and few
sessions, a study has many of both. So its errors are moderated by those of all comparisons
(Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004).
Sessions differ by more than their windows tell, since processes do (Georges, Buytaert and
Eeckhout, Statistically rigorous Java performance evaluation, 2007; Kalibera and Jones, Rigorous
benchmarking in reasonable time, 2013): that variance is estimated from all comparisons together
(Paule and Mandel, Consensus values and weighting factors, 1982) and added to each one's own.
The interval takes Student's t with as many degrees of freedom as there are sessions beyond the
first of each comparison, or as the moderated error has if these are fewer, at a level at which
*all* intervals of the study hold together with 95 % (Sidak, Rectangular confidence regions,
1967).

Assumed: processes differ about as much in one comparison as in another. How noisy the windows
are may differ, and does between one process and several.
"""

from collections.abc import Sequence
from math import exp, inf, sqrt

import numpy as np
from scipy import optimize, special, stats

from schemas.results import Interval
from transformer_core.analysis.medians import CONFIDENCE
from transformer_core.measure.pairs import LogRatio


def simultaneous_ratios(comparisons: Sequence[Sequence[LogRatio]]) -> list[Interval]:
    """The ratio of each comparison, with intervals that all hold together with 95 %.

    A comparison is a list of sessions. Without a second session in any comparison there is no
    variance between sessions: the intervals then tell of the windows alone, and are too narrow.
    ``samples`` counts pairs of windows. Raises ValueError for a comparison without a session.
    """
    if not all(comparisons):
        raise ValueError("a comparison needs at least one session")
    squares, known = _moderated(
        [_square(sessions) for sessions in comparisons],
        [sum(session.freedom for session in sessions) for sessions in comparisons],
    )
    between = variance_between_sessions(comparisons, squares)
    repeated = sum(len(sessions) - 1 for sessions in comparisons)
    level = CONFIDENCE ** (1 / max(1, len(comparisons)))
    intervals = []
    for sessions, square, freedom in zip(comparisons, squares, known, strict=True):
        # The fewer of the two: the sum of both variances is known no worse than that.
        freedom = min(freedom, repeated) if repeated else freedom
        factor = float(stats.t.ppf((1 + level) / 2, max(1, freedom)))
        reach = factor * sqrt((between + square) / len(sessions))
        center = float(np.mean([session.estimate for session in sessions]))
        intervals.append(
            Interval(
                median=exp(center),
                low=exp(center - reach),
                high=exp(center + reach),
                samples=sum(session.pairs for session in sessions),
            )
        )
    return intervals


def _moderated(squares: Sequence[float], freedom: Sequence[int]) -> tuple[list[float], list[float]]:
    """Squared errors drawn towards what is usual in the study, the more the more alike they are,
    and their degrees of freedom then.

    Fewer than three are left as they are, and so are errors of what is counted, which are 0.
    """
    if len(squares) < 3 or min(squares) <= 0:
        return list(squares), [
            float(f) if s > 0 else inf for s, f in zip(squares, freedom, strict=True)
        ]
    own = np.array(freedom, np.float64)
    # Section 6.2 of Smyth (2004): the logarithms vary by this beyond what their freedom explains.
    logs = np.log(squares) - special.digamma(own / 2) + np.log(own / 2)
    beyond = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, own / 2)))
    if beyond <= 0:
        return [float(np.mean(squares))] * len(squares), [inf] * len(squares)
    prior = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - beyond, 1e-6, 1e9)
    usual = np.exp(np.mean(logs) + special.digamma(prior / 2) - np.log(prior / 2))
    drawn = (prior * usual + own * np.array(squares)) / (prior + own)
    return list(map(float, drawn)), list(map(float, prior + own))


def variance_between_sessions(
    comparisons: Sequence[Sequence[LogRatio]], squares: Sequence[float] | None = None
) -> float:
    """Variance between the sessions of a comparison beyond their errors, the same for all of them;
    0 where no comparison has a second session. ``squares`` are the squared errors, if not those of
    the sessions themselves."""
    if squares is None:
        squares = [_square(sessions) for sessions in comparisons]
    spreads = [
        len(sessions) * float(np.var([session.estimate for session in sessions]))
        for sessions in comparisons
    ]
    freedom = sum(len(sessions) - 1 for sessions in comparisons)

    def excess(variance: float) -> float:
        """How much more the estimates scatter than they would with this variance."""
        terms = zip(spreads, squares, strict=True)
        return sum(spread / (variance + square) for spread, square in terms if spread) - freedom

    # A little more than would do without any error, where rounding decides on which side it lies.
    most = sum(spreads) / max(1, freedom) * (1 + 1e-9)
    least = most * 1e-9  # not 0, where an error of 0 would divide by it
    if not most or excess(least) <= 0:
        return 0.0
    return float(optimize.brentq(excess, least, most))


def _square(sessions: Sequence[LogRatio]) -> float:
    """Mean squared error of a session."""
    return float(np.mean([session.error**2 for session in sessions]))
