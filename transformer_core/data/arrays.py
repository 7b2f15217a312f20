"""Two index computations that replace loops over pairs."""

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """The concatenation of ``arange(start, start + length)`` over all n rows.

    Args:
        starts: [n] first value of each range.
        lengths: [n] number of values of each range; 0 is allowed.

    Returns:
        [sum(lengths)] indices.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    if not len(ends):
        return np.empty(0, np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1], dtype=np.int64)


def evenly_spaced(total: int, count: int) -> NDArray[np.int64]:
    """At most ``count`` different numbers of 0 … total - 1, evenly spaced and ascending."""
    kept = min(total, count)
    return np.arange(kept, dtype=np.int64) * total // max(kept, 1)
