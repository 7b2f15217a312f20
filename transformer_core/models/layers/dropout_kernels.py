"""Dropout beside its neighbours on a CPU: compiled loops that draw, drop and add in one pass.

A mask is a hash of the place of each element and of a seed of the call, as counter-based generators
have it (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), so that the backward
pass makes it anew instead of keeping it. The hash mixes 32 bits by two multiplications and shifts,
with the constants of C. Wellons' search (lowbias32, github.com/skeeto/hash-prospector), and takes
the second half of the seed between them: the masks of two seeds are not one sequence with another
start.

The loops take 32 bits or bfloat16, and compute in 32 bits.
"""

from collections.abc import Callable

import numpy as np
import torch
from numba import njit, uint32
from torch import Tensor

from transformer_core.models.layers.compiled_loops import array_of, in_pieces, like, wide


@njit(inline="always")
def is_kept(place, low, high, threshold):  # type: ignore[no-untyped-def]
    """Whether the element at ``place`` is kept, by the two halves of a seed."""
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
        kept = is_kept(first + i, low, high, threshold)
        result[i] = like(
            result[i], wide(residual[i]) + (wide(x[i]) * scale if kept else np.float32(0))
        )


@njit(nogil=True, cache=True, fastmath=True)
def _scale(result, x, _, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = is_kept(first + i, low, high, threshold)
        result[i] = like(result[i], wide(x[i]) * scale if kept else np.float32(0))


@njit(nogil=True, cache=True, fastmath=True)
def _relu(result, x, _, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = is_kept(first + i, low, high, threshold)
        value = wide(x[i])
        result[i] = like(result[i], value * scale if kept and value > 0 else np.float32(0))


@njit(nogil=True, cache=True, fastmath=True)
def _where(result, x, other, first, low, high, threshold, scale):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        result[i] = like(result[i], wide(x[i]) * scale if wide(other[i]) > 0 else np.float32(0))


def kept(x: Tensor, seed: int, p: float, form: torch.dtype | None = None) -> Tensor:
    """x of any shape, each element dropped with probability ``p``, else over 1 - p, in the format
    ``form`` or its own."""
    return _shared(_scale, x, x, seed, p, form)


def added(residual: Tensor, x: Tensor, seed: int, p: float) -> Tensor:
    """``residual`` plus :func:`kept` of x, both of one shape."""
    return _shared(_add, x, residual, seed, p)


def positive(x: Tensor, seed: int, p: float) -> Tensor:
    """:func:`kept` of max(x, 0)."""
    return _shared(_relu, x, x, seed, p)


def where_positive(gradient: Tensor, result: Tensor, p: float) -> Tensor:
    """The gradient of :func:`positive`, whose result it takes: over 1 - p where that is not 0."""
    return _shared(_where, gradient, result, 0, p)


def constants(seed: int, p: float) -> tuple[np.uint32, np.uint32, np.uint32, np.float32]:
    """What :func:`is_kept` takes beside a place, and what kept elements are multiplied by."""
    return (
        np.uint32(seed & 0xFFFFFFFF),
        np.uint32(seed >> 32 & 0xFFFFFFFF),
        np.uint32(min(round(p * 2**32), 2**32 - 1)),
        np.float32(1 / (1 - p)),
    )


def _shared(
    loop: Callable[..., None],
    x: Tensor,
    other: Tensor,
    seed: int,
    p: float,
    form: torch.dtype | None = None,
) -> Tensor:
    """Run ``loop`` on pieces of tensors on the CPU; the result has the format ``form``, or that of
    ``other``."""
    result = torch.empty(x.shape, dtype=form or other.dtype)
    arrays = [array_of(t) for t in (result, x, other)]
    numbers = constants(seed, p)

    def piece(start: int, stop: int) -> None:
        loop(*(array[start:stop] for array in arrays), np.int64(start), *numbers)

    in_pieces(piece, x.numel())
    return result
