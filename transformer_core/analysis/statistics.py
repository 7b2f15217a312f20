"""Medians, and ratios of medians, with 95 % intervals.

The samples are throughputs of windows, grouped by repeat. Windows of one repeat share a process, a
placement in memory and a moment in time, so they say less than as many independent samples. The
interval is therefore a percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13) of a two-level bootstrap, which draws repeats with replacement and then windows
within each drawn repeat (Davison and Hinkley, Bootstrap Methods and their Application, 1997,
section 3.8; for benchmarks: Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, 2013).

Assumed: repeats are exchangeable, and so are the windows within a repeat. With few repeats the
variation between repeats is underestimated; with one it is not seen at all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.results import Interval

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


def ratio_interval(numerator: Groups, denominator: Groups) -> Interval:
    """Ratio of the two medians and its interval; both sides are resampled independently.

    ``samples`` is the number of samples of the scarcer side. With fewer than FEWEST_SAMPLES, the
    interval reaches from the smallest to the largest ratio of any two samples. Raises ValueError
    without a sample on a side or with a sample of the denominator that is not positive.
    """
    above, below = _pool(numerator), _pool(denominator)
    if below.min() <= 0:
        raise ValueError("a ratio needs a positive denominator")
    if min(above.size, below.size) < FEWEST_SAMPLES:
        low, high = above.min() / below.max(), above.max() / below.min()
    else:
        low, high = _limits(
            _bootstrap_medians(numerator, _SEED) / _bootstrap_medians(denominator, _SEED + 1)
        )
    return Interval(
        median=float(np.median(above) / np.median(below)),
        low=float(low),
        high=float(high),
        samples=min(above.size, below.size),
    )


def spread_of_repeats(groups: Groups) -> float | None:
    """Largest median of a repeat over the smallest; null with fewer than two repeats."""
    medians = [float(np.median(group)) for group in groups if len(group)]
    if len(medians) < 2 or min(medians) <= 0:
        return None
    return max(medians) / min(medians)


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
