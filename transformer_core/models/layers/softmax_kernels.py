"""Mask, softmax and dropout of attention scores in one compiled loop over each row, on a CPU.

Masks of dropout are those of :mod:`transformer_core.models.layers.dropout_kernels`: made anew in the
backward pass.
"""

from collections.abc import Callable

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.models.layers.compiled_loops import (
    LOWEST,
    SUMS,
    array_of,
    exp_of,
    in_pieces,
    larger,
    like,
    wide,
)
from transformer_core.models.layers.dropout_kernels import constants, is_kept

_LANES = 16
"""Rows are worked on in multiples of this, so that no element is left over for slow single ones."""


@njit(nogil=True, cache=True, fastmath=SUMS, error_model="numpy")
def _forward(  # type: ignore[no-untyped-def]
    weights, scores, hidden, offsets, causal, start, stop, low, high, threshold, scale
):
    """Rows start to stop of scores [rows, m], overwritten by their softmax; ``offsets`` say where
    the mask of each begins, and ``causal`` how many queries follow each other, or 0."""
    m = scores.shape[1]
    width = (m + _LANES - 1) // _LANES * _LANES
    work, dropped = np.empty(width, np.float32), np.empty(width, np.float32)
    for row in range(start, stop):
        seen = min(m, row % causal + 1) if causal else m
        given, made = scores[row], weights[row]
        work[seen:] = LOWEST
        for j in range(seen):
            work[j] = wide(given[j])
        if len(hidden):
            mask = hidden[offsets[row] :]
            for j in range(seen):
                work[j] = LOWEST if mask[j] else work[j]
        top = LOWEST
        for j in range(width):
            top = larger(work[j], top)
        for j in range(width):
            shown = np.float32(work[j] != LOWEST)
            work[j] = exp_of(work[j] - top) * shown
        total = np.float32(0)
        for j in range(width):
            total += work[j]
        over = np.float32(1) / total if total != 0 else np.float32(0)
        place = row * m
        for j in range(width):
            work[j] *= over
        for j in range(width):
            kept = is_kept(place + j, low, high, threshold)
            dropped[j] = work[j] * scale if kept else np.float32(0)
        for j in range(m):
            given[j] = like(given[j], work[j])
        for j in range(m):
            made[j] = like(made[j], dropped[j])


@njit(nogil=True, cache=True, fastmath=SUMS, error_model="numpy")
def _backward(  # type: ignore[no-untyped-def]
    result, gradient, softmax, start, stop, low, high, threshold, scale
):
    """The gradient of the scores, rows start to stop of [rows, m]."""
    m = gradient.shape[1]
    width = (m + _LANES - 1) // _LANES * _LANES
    work, share = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for row in range(start, stop):
        g, p, out = gradient[row], softmax[row], result[row]
        for j in range(m):
            work[j] = wide(g[j])
        for j in range(m):
            share[j] = wide(p[j])
        place, total = row * m, np.float32(0)
        for j in range(width):
            kept = is_kept(place + j, low, high, threshold)
            work[j] = work[j] * scale if kept else np.float32(0)
            total += work[j] * share[j]
        for j in range(m):
            out[j] = like(out[j], share[j] * (work[j] - total))


def weights_of(
    scores: Tensor, mask: Tensor | None, causal: bool, seed: int, p: float
) -> tuple[Tensor, Tensor]:
    """Softmax of scores [b, h, n, m], and the same with elements dropped with probability ``p``.

    mask is boolean, broadcastable to the scores, true where a key is seen; with ``causal``, query i
    sees keys 0 to i. A query without a key sees nothing: its weights are 0. The scores are
    overwritten if they are contiguous.
    """
    softmax, n, m = scores.contiguous(), scores.size(-2), scores.size(-1)
    weights = torch.empty_like(softmax)
    flat = [array_of(x).reshape(-1, m) for x in (weights, softmax)]
    hidden, offsets = _hidden(mask, scores)
    forward: Callable[..., None] = _forward
    numbers = constants(seed, p)

    def piece(start: int, stop: int) -> None:
        forward(*flat, hidden, offsets, n if causal else 0, start, stop, *numbers)

    in_pieces(piece, len(flat[0]), m)
    return softmax, weights


def gradient_of(gradient: Tensor, softmax: Tensor, seed: int, p: float) -> Tensor:
    """The gradient of the scores, from that of the weights and the softmax [b, h, n, m]."""
    result, m = torch.empty_like(softmax), softmax.size(-1)
    backward: Callable[..., None] = _backward
    flat = [array_of(x).reshape(-1, m) for x in (result, gradient, softmax)]
    numbers = constants(seed, p)

    def piece(start: int, stop: int) -> None:
        backward(*flat, start, stop, *numbers)

    in_pieces(piece, len(flat[0]), m)
    return result


def _hidden(mask: Tensor | None, scores: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The mask inverted, in a row, and where in it that of each row of scores begins."""
    if mask is None:
        return np.empty(0, np.bool_), np.empty(0, np.int64)
    m = scores.size(-1)
    hidden = (~mask).expand(*mask.shape[:-1], m).contiguous()
    places = torch.arange(0, hidden.numel(), m).view(hidden.shape[:-1])
    return hidden.view(-1).numpy(), places.expand(scores.shape[:-1]).reshape(-1).numpy()
