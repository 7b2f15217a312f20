"""The ratio of a session: from its windows to one number and its error.

Two windows of a round are adjacent in time, so that the machine's influence on both (its clock, other
load) cancels in their ratio. The session's ratio is a trimmed mean of the logarithms of these
ratios, without the lowest and highest three tenths. It is close to the median, since many windows
are disturbed on a shared machine, but has a known standard error (Tukey and McLaughlin, 1963; Yuen,
The two-sample trimmed t for unequal population variances, 1974).
"""

from collections.abc import Sequence
from itertools import combinations
from math import log, nan, sqrt
from statistics import median

import numpy as np

from schemas.results import LogRatio, Pair, Round, Session, TurnWindow

TRIM = 0.3
"""Fraction of the ratios trimmed at either end, in whole ratios."""


def log_ratios(rounds: Sequence[Round], pair: Pair) -> list[float]:
    """Logarithm of the ratio of throughputs, variant over reference, for each round."""
    return [
        log(_rate(sides[pair.variant]) / _rate(sides[pair.reference]))
        for sides in ({window.side: window for window in rnd.windows} for rnd in rounds)
    ]


def session_ratio(rounds: Sequence[Round], pair: Pair, processes: int = 1) -> LogRatio:
    """The trimmed mean of :func:`log_ratios` and its standard error, for a reference with this number
    of ``processes``."""
    return log_ratio_of(pair, log_ratios(rounds, pair), processes)


def log_ratio_of(pair: Pair, logs: Sequence[float], processes: int = 1) -> LogRatio:
    """The trimmed mean of the logarithms of a session's ratios, with its standard error."""
    values = np.sort(logs)
    count = len(values)
    cut = int(TRIM * count)
    kept = values[cut : count - cut]
    # As in scipy.stats.mstats, whose import takes a second and 35 MB of disk.
    estimate = float(kept.mean())
    error = nan
    if count > 1:
        winsorized = values.clip(kept[0], kept[-1])
        error = float(winsorized.std(ddof=1)) / (len(kept) / count * sqrt(count))
    return LogRatio(*pair, estimate, error, len(kept) - 1, count, processes)


def session_ratios(
    rounds: Sequence[Round], sides: Sequence[str], processes: int = 1
) -> list[LogRatio]:
    """The ratio of each of the ``sides`` to each of those before it; the first side has this number
    of ``processes``."""
    return [
        session_ratio(rounds, Pair(later, side), processes if side == sides[0] else 1)
        for side, later in combinations(sides, 2)
    ]


def step_seconds(sessions: Sequence[Session], side: str) -> float | None:
    """Median time of a step of ``side`` in its turns; None without any."""
    times = [window.step_seconds for session in sessions for window in session.windows(side)]
    return median(times) if times else None


def _rate(window: TurnWindow) -> float:
    return window.tokens / window.seconds
