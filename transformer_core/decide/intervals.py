"""Ratios with intervals that hold all at once; medians and arithmetic of intervals.

Each session of a comparison gives the logarithm of a ratio, and its standard error from the windows
(:mod:`transformer_core.measure.session_ratio`). The ratio of a comparison is the mean of its
sessions, each weighted by the inverse of its variance: a session in a noisy minute counts less.
These weights are estimates, which adds to the variance (Meier, Variance of a weighted mean, 1953,
applied to the part of a moderated error that is the session's own). The variance has two parts:

- Within sessions: a session has few windows, but a study has many sessions. So the errors of all
  sessions of a study moderate one another (Smyth, Linear models and empirical Bayes
  methods for assessing differential expression, 2004).
- Between sessions: processes differ by more than their windows show (Georges, Buytaert and
  Eeckhout, Statistically rigorous Java performance evaluation, 2007; Kalibera and Jones, Rigorous
  benchmarking in reasonable time, 2013). This part is estimated from all comparisons with the same
  reference (Paule and Mandel, Consensus values and weighting factors, 1982), separately for each
  reference: several processes that send messages differ more from session to session than one.

If the sessions of one comparison still scatter more than these variances say, its own scatter
counts, moderated by that of the others in the same way.

Comparisons that share the sessions of their reference share its deviations, too. If the reference
runs in n processes, their ratios are correlated by about 1 / (n + 1) and their scatters by its
square r, so k comparisons of s sessions have (s - 1) k / (1 + (k - 1) r) degrees of freedom rather
than (s - 1) k. The interval takes Student's t with these, or with those of the moderated errors if
they are fewer, at a level at which *all* intervals of the study hold together with 95 % (Sidak,
Rectangular confidence regions, 1967). ``tests/decide/test_decide_statistics.py`` simulates it.

Re-measuring undecided comparisons adds a chance of a false positive at each look. So a comparison
at its j-th look spends the fraction 1 / (j (j + 1)) of its share of the 5 %. These fractions add up
to 1, so all intervals of all looks hold together, whenever and for whatever reason measuring stops
(a union bound over looks, as alpha is spent in group sequential tests: Lan and DeMets, Discrete
sequential boundaries for clinical trials, 1983).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp, inf, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from schemas.results import Interval, LogRatio

ROUNDED = 1e-20  # variance of logarithms below which differences are only rounding
WIDEST = 20.0
"""Half the logarithm of the widest interval: two noisy sessions may give one that no number can hold."""

Values = NDArray[np.float64]
"""[sessions] one number per session, for one comparison or several in a row."""


def part_of_look(looks: int) -> float:
    """Share of a comparison's error probability available to the last of its ``looks``: all of
    it if there were none."""
    return 1 / (looks * (looks + 1)) if looks else 1.0


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution."""
    # As scipy.stats.t.ppf, whose module takes half a second to import.
    return float(special.stdtrit(freedom, probability))


def simultaneous_ratios(
    comparisons: Sequence[Sequence[LogRatio]], looks: Sequence[int] | None = None
) -> list[Interval]:
    """The ratio of each comparison, with intervals that all hold at once with 95 % probability.

    A comparison is a list of sessions; ``looks`` is the number of times each one was examined to
    decide whether it continues, zero by default. If no comparison with a reference has a second
    session, the variance between sessions is unknown: the intervals then reflect only the windows,
    and are too narrow. ``samples`` counts pairs of windows. Raises ValueError for a comparison
    without a session.
    """
    if not all(comparisons):
        raise ValueError("a comparison needs at least one session")
    if not comparisons:
        return []
    own_squares = [_squares(sessions) for sessions in comparisons]
    own_freedom = np.array([s.freedom for sessions in comparisons for s in sessions], np.float64)
    cuts = np.cumsum([len(sessions) for sessions in comparisons])[:-1]
    moderated = _moderated(np.concatenate(own_squares), own_freedom)
    squares, known = (np.split(values, cuts) for values in moderated)
    between = between_sessions(comparisons, squares)
    totals = [
        between[sessions[0].reference].variance + square
        for sessions, square in zip(comparisons, squares, strict=True)
    ]
    means = [_weighted_mean(_estimates(s), t) for s, t in zip(comparisons, totals, strict=True)]
    excess = _excess(comparisons, totals, [center for center, _ in means])
    error = 1 - CONFIDENCE ** (1 / len(comparisons))
    intervals = []
    for sessions, total, (center, weights), of_each, times, own_spread, seen in zip(
        comparisons, totals, means, known, *excess, looks or [0] * len(comparisons), strict=True
    ):
        # The smallest: the sum of both variances is known at least that well.
        shared = between[sessions[0].reference].freedom or inf
        freedom = min(float(of_each.sum()), shared, own_spread)
        factor = student(1 - error * part_of_look(seen) / 2, max(1, freedom))
        variance = times * float(weights**2 @ total)
        # Of a moderated error only this part varies with the session.
        own = np.array([session.freedom for session in sessions]) / of_each
        variance *= 1 + 4 * float(np.sum(weights * (1 - weights) * own / of_each))
        reach = min(factor * sqrt(variance), WIDEST)
        intervals.append(
            Interval(
                median=exp(center),
                low=exp(center - reach),
                high=exp(center + reach),
                samples=sum(session.pairs for session in sessions),
            )
        )
    return intervals


def _weighted_mean(values: Values, variances: Values) -> tuple[float, Values]:
    """The mean of the values, weighted by the inverse of their variances; and the weights."""
    # Counts have no variance.
    weights = np.ones_like(values) if variances.min() <= 0 else 1 / variances
    weights /= weights.sum()
    return float(weights @ values), weights


def _excess(
    comparisons: Sequence[Sequence[LogRatio]], totals: Sequence[Values], centers: Sequence[float]
) -> tuple[Values, Values]:
    """For each comparison, how many times as much its sessions vary as their ``totals`` say, at
    least once, and the degrees of freedom of what exceeds that.

    With one or two comparisons nothing shows what is usual: then the totals stay as they are. Sizes
    that are the same in all sessions do not show it either.
    """
    freedom = np.array([len(total) - 1 for total in totals])
    times, known = np.ones(len(totals)), np.full(len(totals), inf)
    if (freedom > 0).sum() > 2:
        scatter = [
            np.sum((_estimates(sessions) - center) ** 2 / np.maximum(total, ROUNDED))
            for sessions, total, center in zip(comparisons, totals, centers, strict=True)
        ]
        varied = np.array([np.var(_estimates(sessions)) > ROUNDED for sessions in comparisons])
        times[varied], known[varied] = _moderated(
            np.array(scatter)[varied] / freedom[varied], freedom[varied]
        )
    return np.maximum(times, 1), np.where(times > 1, known, inf)


def _moderated(squares: Values, freedom: Values) -> tuple[Values, Values]:
    """Squared errors shrunk towards the study's typical value, the more so the more alike they are,
    and the resulting degrees of freedom.

    Fewer than three are left unchanged, as are errors of counts, which are 0.
    """
    if len(squares) < 3 or squares.min() <= 0:
        return squares, np.where(squares > 0, freedom, inf)
    # Section 6.2 of Smyth (2004): the logarithms vary by this beyond what their freedom explains.
    logs = np.log(squares) - special.digamma(freedom / 2) + np.log(freedom / 2)
    beyond = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, freedom / 2)))
    if beyond <= 0:
        return np.full_like(squares, squares.mean()), np.full_like(squares, inf)
    prior = 2 * _root(lambda x: special.polygamma(1, x) - beyond, 1e-6, 1e9)
    usual = np.exp(np.mean(logs) + special.digamma(prior / 2) - np.log(prior / 2))
    return (prior * usual + freedom * squares) / (prior + freedom), prior + freedom


class Between(NamedTuple):
    """Variation between sessions of comparisons with one reference, beyond their own errors."""

    variance: float  # variance of the logarithm of a ratio; 0 if no comparison has a second session
    freedom: float  # degrees of freedom of that estimate


def between_sessions(
    comparisons: Sequence[Sequence[LogRatio]], squares: Sequence[Values] | None = None
) -> dict[str, Between]:
    """By reference, the variation between sessions. ``squares`` are the squared errors of the
    sessions of each comparison, if not their own."""
    squares = squares or [_squares(sessions) for sessions in comparisons]
    found = defaultdict(list)
    processes = defaultdict[str, list[int]](list)
    for sessions, square in zip(comparisons, squares, strict=True):
        reference = sessions[0].reference
        found[reference].append((_estimates(sessions), square))
        processes[reference] += [session.processes for session in sessions]
    return {name: _between(measured, min(processes[name])) for name, measured in found.items()}


def _between(measured: Sequence[tuple[Values, Values]], processes: int) -> Between:
    """The variation for a reference that runs in ``processes`` processes, given the estimates and
    squared errors of each comparison's sessions."""
    repeated = sum(len(values) - 1 for values, _ in measured)

    def excess(variance: float) -> float:
        """Excess scatter of the estimates over that expected with this variance."""
        total = 0.0
        for values, square in measured:
            center, _ = _weighted_mean(values, variance + square)
            total += float(np.sum((values - center) ** 2 / (variance + square)))
        return total - repeated

    shared = sum(len(values) > 1 for values, _ in measured)
    correlation = (processes + 1) ** -2
    freedom = repeated / (1 + correlation * max(0, shared - 1))
    # Slightly above the bound without errors, as rounding decides on which side that lies.
    spread = sum(float(np.var(values)) * len(values) for values, _ in measured)
    most = spread / max(1, repeated) * (1 + 1e-9)
    least = most * 1e-9  # not 0: an error of 0 would then divide by 0
    if most < ROUNDED or excess(least) <= 0:
        return Between(0.0, freedom)
    return Between(_root(excess, least, most), freedom)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where ``function`` is 0, between two places at which it has different signs."""
    from scipy import optimize  # takes a fifth of a second, and few jobs need it

    return float(optimize.brentq(function, low, high))


def _estimates(sessions: Sequence[LogRatio]) -> Values:
    return np.array([session.estimate for session in sessions], np.float64)


def _squares(sessions: Sequence[LogRatio]) -> Values:
    return np.array([session.error**2 for session in sessions], np.float64)


Groups = Sequence[Sequence[float]]  # samples by repeat

CONFIDENCE = 0.95
BLOCKS = 6
FEWEST_SAMPLES = 3  # with fewer, the interval is their range


def median_interval(groups: Groups) -> Interval | None:
    """Median of all samples, which are above 0, and its interval; None without a sample.

    The interval is Student's, from the scatter of the logarithms of the medians of repeats. A single
    repeat is divided into BLOCKS blocks of consecutive samples, because neighbors are alike. With
    fewer than FEWEST_SAMPLES samples ``low`` and ``high`` are the smallest and the largest.
    """
    groups = [group for group in groups if len(group)]
    if not groups:
        return None
    values = np.concatenate(groups)
    center = float(np.median(values))
    if values.size < FEWEST_SAMPLES:
        low, high = float(values.min()), float(values.max())
    else:
        blocks = groups if len(groups) > 1 else np.array_split(values, min(BLOCKS, values.size))
        logs = np.log([np.median(block) for block in blocks])
        factor = student((1 + CONFIDENCE) / 2, len(logs) - 1)
        reach = min(factor * float(np.std(logs, ddof=1)) / sqrt(len(logs)), WIDEST)
        low, high = center * exp(-reach), center * exp(reach)
    return Interval(median=center, low=low, high=high, samples=values.size)


def exact(value: float, samples: int = 1) -> Interval:
    """A number without uncertainty: counted, or measured once."""
    return Interval(median=value, low=value, high=value, samples=samples)


def range_of(values: Sequence[float]) -> Interval:
    """The median of repeated measurements and their range."""
    return Interval(median=median(values), low=min(values), high=max(values), samples=len(values))


def widened(interval: Interval, share: float) -> Interval:
    """``interval`` with each end moved outwards by a fraction of itself."""
    low = interval.low - share * abs(interval.low)
    high = interval.high + share * abs(interval.high)
    return interval.model_copy(update={"low": low, "high": high})


def quotient(above: Interval, below: Interval) -> Interval:
    """One number over another; ValueError unless both are 0 or more, and the second is above 0."""
    if above.low < 0 or below.low <= 0:
        raise ValueError(f"{above.low:g} over {below.low:g} is not a ratio of two sizes")
    return Interval(
        median=above.median / below.median,
        low=above.low / below.high,
        high=above.high / below.low,
        samples=min(above.samples, below.samples),
    )


def product(first: Interval, second: Interval) -> Interval:
    """One number times another; ValueError unless both are 0 or more."""
    if first.low < 0 or second.low < 0:
        raise ValueError(f"{first.low:g} times {second.low:g} is not a product of two sizes")
    return Interval(
        median=first.median * second.median,
        low=first.low * second.low,
        high=first.high * second.high,
        samples=min(first.samples, second.samples),
    )
