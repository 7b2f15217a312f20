"""Dropout beside its neighbours on a CPU: compiled loops that draw, drop and add in one pass.

A mask is a hash of the place of each element and of a seed of the call, as counter-based generators
have it (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), so that the backward
pass makes it anew instead of keeping it. The hash mixes 32 bits by two multiplications and shifts,
with the constants of C. Wellons' search (lowbias32, github.com/skeeto/hash-prospector), and takes
the second half of the seed between them: the masks of two seeds are not one sequence with another
start.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numba import njit, uint32
from torch import Tensor

_LEAST = 2**15
"""Elements below which a second thread costs more than it saves."""


@njit(inline="always")
def _kept(place, low, high, threshold):  # type: ignore[no-untyped-def]
    x = uint32(uint32(place) + low)
    x = uint32(x ^ (x >> uint32(16)))
    x = uint32(x * uint32(0x7FEB352D))
    x = uint32(x ^ high)
    x = uint32(x ^ (x >> uint32(15)))
    x = uint32(x * uint32(0x846CA68B))
    x = uint32(x ^ (x >> uint32(16)))
    return x >= threshold


@njit(nogil=True, cache=True, fastmath=True)
def _add(result, x, residual, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = _kept(first + i, low, high, threshold)
        result[i] = residual[i] + (x[i] * scale if kept else np.float32(0))


@njit(nogil=True, cache=True, fastmath=True)
def _scale(result, x, _, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = _kept(first + i, low, high, threshold)
        result[i] = x[i] * scale if kept else np.float32(0)


@njit(nogil=True, cache=True, fastmath=True)
def _relu(result, x, _, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = _kept(first + i, low, high, threshold)
        result[i] = x[i] * scale if kept and x[i] > 0 else np.float32(0)


@njit(nogil=True, cache=True, fastmath=True)
def _where(result, x, other, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        result[i] = x[i] * scale if other[i] > 0 else np.float32(0)


def kept(x: Tensor, seed: int, p: float) -> Tensor:
    """x of any shape, each element dropped with probability ``p``, else over 1 - p."""
    return _shared(_scale, x, x, seed, p)


def added(residual: Tensor, x: Tensor, seed: int, p: float) -> Tensor:
    """``residual`` plus :func:`kept` of x, both of one shape."""
    return _shared(_add, x, residual, seed, p)


def positive(x: Tensor, seed: int, p: float) -> Tensor:
    """:func:`kept` of max(x, 0)."""
    return _shared(_relu, x, x, seed, p)


def where_positive(gradient: Tensor, result: Tensor, p: float) -> Tensor:
    """The gradient of :func:`positive`, whose result it takes: over 1 - p where that is not 0."""
    return _shared(_where, gradient, result, 0, p)


def _shared(loop: Callable[..., None], x: Tensor, other: Tensor, seed: int, p: float) -> Tensor:
    """Run ``loop`` on pieces of float32 tensors on the CPU, one for each of torch's threads."""
    result = torch.empty(x.shape)
    arrays = [t.detach().contiguous().view(-1).numpy() for t in (result, x, other)]
    constants = (
        np.uint32(seed & 0xFFFFFFFF),
        np.uint32(seed >> 32 & 0xFFFFFFFF),
        np.uint32(min(round(p * 2**32), 2**32 - 1)),
        np.float32(1 / (1 - p)),
    )
    count, threads = x.numel(), torch.get_num_threads()
    size = count if count < threads * _LEAST else -(-count // threads)
    pieces = [
        (*(array[i : i + size] for array in arrays), np.int64(i), *constants)
        for i in range(0, count, max(1, size))
    ]
    waiting = [_pool(threads).submit(loop, *piece) for piece in pieces[1:]]
    for piece in pieces[:1]:
        loop(*piece)
    for done in waiting:
        done.result()
    return result


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "dropout")
