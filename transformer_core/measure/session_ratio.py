"""The ratio of a session: from its windows to one number and its error.

Two windows of a round are adjacent in time, so that the machine's influence on both (its clock, other
load) cancels in their ratio. The session's ratio is a trimmed mean of the logarithms of these
ratios, without the lowest and highest three tenths. It is close to the median, since many windows
are disturbed on a shared machine, but has a known standard error (Tukey and McLaughlin, 1963; Yuen,
The two-sample trimmed t for unequal population variances, 1974).

If the reference runs in several processes, each of them gives a trimmed mean, and the ratio is their
mean. Trimming the ratios to the mean time of the processes instead would be biased: disturbances only
lengthen windows, and the mean of several is less skewed than the time of one.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import log, nan, sqrt
from statistics import fmean, median

import numpy as np
from numpy.typing import ArrayLike

from schemas.results import LogRatio, Pair, Round, Session, TurnWindow

TRIM = 0.3
"""Fraction of the ratios trimmed at either end, in whole ratios."""


def log_ratios(rounds: Sequence[Round], pair: Pair) -> list[float]:
    """Logarithm of the ratio of throughputs, variant over reference, for each round: the mean over the
    processes of the reference."""
    return [fmean(logs) for logs in _of_processes(rounds, pair)]


def session_ratio(rounds: Sequence[Round], pair: Pair) -> LogRatio:
    """The ratio of a session with these rounds, and its standard error."""
    return log_ratio_of(pair, list(_of_processes(rounds, pair)))


def log_ratio_of(pair: Pair, logs: ArrayLike) -> LogRatio:
    """The trimmed mean of the logarithms of a session's ratios, with its standard error; for each
    round one logarithm, or one for each process of the reference."""
    values_rp = np.array(logs, float)
    values_rp = values_rp.reshape(len(values_rp), -1)
    count, processes = values_rp.shape
    cut = int(TRIM * count)
    kept_rp = np.sort(values_rp, axis=0)[cut : count - cut]
    error = nan
    if count > 1:
        # As in scipy.stats.mstats, whose import takes a second and 35 MB of disk. The processes share
        # the windows of the variant, so a round counts once.
        winsorized_r = values_rp.clip(kept_rp[0], kept_rp[-1]).mean(axis=1)
        error = float(winsorized_r.std(ddof=1)) / (len(kept_rp) / count * sqrt(count))
    return LogRatio(*pair, float(kept_rp.mean()), error, len(kept_rp) - 1, count, processes)


def session_ratios(rounds: Sequence[Round], sides: Sequence[str]) -> list[LogRatio]:
    """The ratio of each of the ``sides`` to each of those before it."""
    return [session_ratio(rounds, Pair(later, side)) for side, later in combinations(sides, 2)]


def step_seconds(sessions: Sequence[Session], side: str) -> float | None:
    """Median time of a step of ``side`` in its turns; None without any."""
    times = [window.step_seconds for session in sessions for window in session.windows(side)]
    return median(times) if times else None


def _of_processes(rounds: Sequence[Round], pair: Pair) -> Iterator[list[float]]:
    """Logarithm of the ratio of throughputs of each round, for each process of the reference."""
    for rnd in rounds:
        windows = {window.side: window for window in rnd.windows}
        variant, reference = (_rates(windows[side]) for side in pair)
        yield [log(mine / theirs) for mine in variant for theirs in reference]


def _rates(window: TurnWindow) -> list[float]:
    return [window.tokens / seconds for seconds in window.of_processes or [window.seconds]]
