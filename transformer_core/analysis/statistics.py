"""Medians with 95 % intervals, and ratios with intervals that hold all at once.

A median over windows
    Windows of one repeat share a process, a placement in memory and a moment in time, so they say
    less than as many independent samples. The interval is therefore a percentile interval (Efron
    and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13) of a two-level bootstrap,
    which draws repeats with replacement and then windows within each drawn repeat (Davison and
    Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). Assumed: repeats are
    exchangeable, and so are the windows within one. With one repeat, the variation between runs is
    not seen.

Ratios of a study
    Each session of a comparison gives the logarithm of a ratio, and its standard error from the
    windows (see :mod:`transformer_core.measure.pairs`). Sessions differ by more than that, since
    processes do (Georges, Buytaert and Eeckhout, Statistically rigorous Java performance
    evaluation, 2007; Kalibera and Jones, Rigorous benchmarking in reasonable time, 2013). A
    comparison has few of them, a study has many: the variance between sessions is estimated from
    all comparisons together, by the method of Paule and Mandel (Consensus values and weighting
    factors, 1982), and is added to each comparison's own error. The interval takes Student's t with
    as many degrees of freedom as there are sessions beyond the first of each comparison, or as its
    own windows have if these are fewer, at a level at which *all* intervals of the study hold
    together with 95 % (Sidak, 1967).

    Assumed: processes differ about as much in one comparison as in another. How noisy the windows
    are may differ, and does between one process and several.
"""

from collections.abc import Sequence
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from schemas.results import Interval
from transformer_core.measure.pairs import LogRatio

Groups = Sequence[Sequence[float]]
"""Samples by repeat."""

CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_SAMPLES = 3
"""With fewer samples than this, the interval is their range: a bootstrap would pretend to know."""

_SEED = 20_170_612
_CHUNK_VALUES = 2_000_000


def median_interval(groups: Groups) -> Interval:
    """Median over all samples and its interval.

    With fewer than FEWEST_SAMPLES samples ``low`` and ``high`` are the smallest and the largest.
    Raises ValueError without a sample.
    """
    values = _pool(groups)
    if values.size < FEWEST_SAMPLES:
        low, high = values.min(), values.max()
    else:
        low, high = _limits(_bootstrap_medians(groups, _SEED))
    return Interval(
        median=float(np.median(values)), low=float(low), high=float(high), samples=values.size
    )


def simultaneous_ratios(comparisons: Sequence[Sequence[LogRatio]]) -> list[Interval]:
    """The ratio of each comparison, with intervals that all hold together with 95 %.

    A comparison is a list of sessions. Without a second session in any comparison there is no
    variance between sessions: the intervals then tell of the windows alone, and are too narrow.
    ``samples`` counts pairs of windows. Raises ValueError for a comparison without a session.
    """
    if not all(comparisons):
        raise ValueError("a comparison needs at least one session")
    between = variance_between_sessions(comparisons)
    repeated = sum(len(sessions) - 1 for sessions in comparisons)
    level = CONFIDENCE ** (1 / max(1, len(comparisons)))
    intervals = []
    for sessions in comparisons:
        square = _square(sessions)
        # The fewer of the two: the sum of both variances is known no worse than that.
        freedom = [repeated] * (repeated > 0)
        freedom += [sum(session.freedom for session in sessions)] * (square > 0)
        factor = float(stats.t.ppf((1 + level) / 2, max(1, min(freedom, default=1))))
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


def variance_between_sessions(comparisons: Sequence[Sequence[LogRatio]]) -> float:
    """Variance between the sessions of a comparison beyond their errors, the same for all of them;
    0 where no comparison has a second session."""
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

    most = sum(spreads) / max(1, freedom)
    least = most * 1e-9  # not 0, where an error of 0 would divide by it
    if not most or excess(least) <= 0:
        return 0.0
    return float(optimize.brentq(excess, least, most))


def _square(sessions: Sequence[LogRatio]) -> float:
    """Mean squared error of a session."""
    return float(np.mean([session.error**2 for session in sessions]))


def _pool(groups: Groups) -> NDArray[np.float64]:
    values = np.array([value for group in groups for value in group], dtype=np.float64)
    if not values.size:
        raise ValueError("a median needs at least one sample")
    return values


def _limits(medians: NDArray[np.float64]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


def _bootstrap_medians(groups: Groups, seed: int) -> NDArray[np.float64]:
    """Medians of RESAMPLES two-level resamples, shape (RESAMPLES,)."""
    groups = [group for group in groups if len(group)]
    sizes_r = np.array([len(group) for group in groups])
    longest = int(sizes_r.max())
    values_rw = np.zeros((len(groups), longest))
    for row, group in zip(values_rw, groups, strict=True):
        row[: len(group)] = group

    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_VALUES // values_rw.size)
    medians = []
    for start in range(0, RESAMPLES, chunk):
        count = min(chunk, RESAMPLES - start)
        repeats_br = generator.integers(len(groups), size=(count, len(groups)))
        sizes_br = sizes_r[repeats_br]
        fractions_brw = generator.random((count, len(groups), longest))
        windows_brw = (fractions_brw * sizes_br[..., None]).astype(np.int64)
        drawn_brw = values_rw[repeats_br[..., None], windows_brw]
        # A short repeat fills only part of its row: the rest sorts behind every drawn value.
        drawn_brw[np.arange(longest) >= sizes_br[..., None]] = np.inf
        drawn_bn = np.sort(drawn_brw.reshape(count, -1), axis=1)
        totals_b = sizes_br.sum(axis=1)
        rows_b = np.arange(count)
        lower_b = drawn_bn[rows_b, (totals_b - 1) // 2]
        upper_b = drawn_bn[rows_b, totals_b // 2]
        medians.append((lower_b + upper_b) / 2)
    return np.concatenate(medians)
