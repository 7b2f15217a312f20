"""Medians over windows, with 95 % intervals.

Windows of one repeat share a process, a placement in memory and a moment in time, so they say less
than as many independent samples. The interval is therefore a percentile interval (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13) of a two-level bootstrap, which
draws repeats with replacement and then windows within each drawn repeat (Davison and Hinkley,
Bootstrap Methods and their Application, 1997, section 3.8). Assumed: repeats are exchangeable, and
so are the windows within one. With one repeat, the variation between runs is not seen.
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
