"""A random order of any length, of which any part can be worked out by itself.

A Feistel network with four rounds (Luby and Rackoff, SIAM J. Computing 17, 1988) permutes the
numbers of an even count of bits; a number that falls outside 0 … count - 1 is permuted again until
it falls inside (cycle walking: Black and Rogaway, CT-RSA 2002). There are fewer than four times as
many numbers as wanted, so that takes fewer than four turns on average.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 4


def permute(places: NDArray[np.int64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The numbers at ``places`` (each below ``count``) of the order of 0 … count - 1 that the
    :data:`ROUNDS` ``keys`` choose."""
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    numbers = _rounds(places.astype(np.uint64), half, mask, keys)
    while len(outside := np.flatnonzero(numbers >= count)):
        numbers[outside] = _rounds(numbers[outside], half, mask, keys)
    return numbers.astype(np.int64)


def _rounds(
    numbers: NDArray[np.uint64], half: np.uint64, mask: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit in changes half
    of the bits out."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
