"""Loss and gradient of logits in bfloat16 in one compiled loop over each row, on a CPU: nothing is
widened in memory, and the gradient is written in place of the logits."""

from collections.abc import Callable

import numpy as np
import torch
from numba import njit
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


@njit(nogil=True, cache=True, fastmath=SUMS, error_model="numpy")
def _rows(logits, labels, losses, share, start, stop):  # type: ignore[no-untyped-def]
    """Rows start to stop; ``share`` is what the target gives to the label."""
    count = logits.shape[1]
    work = np.empty(count, np.float32)
    for row in range(start, stop):
        x, label = logits[row], labels[row]
        for j in range(count):
            work[j] = wide(x[j])
        top = LOWEST
        for j in range(count):
            top = larger(work[j], top)
        chosen = work[label]
        for j in range(count):
            work[j] = exp_of(work[j] - top)
        total = np.float32(0)
        for j in range(count):
            total += work[j]
        losses[row] = top + np.log(total) - share * chosen
        work[label] -= share * total
        over = np.float32(1) / total
        for j in range(count):
            x[j] = like(x[j], work[j] * over)


def loss_and_gradient(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Loss [n] of logits [n, v], both without the evenly spread share of the target, and its
    gradient, which takes the place of the logits. labels [n], of which none is padding."""
    losses = torch.empty(len(logits), dtype=torch.float32)
    arrays = (array_of(logits).reshape(logits.shape), array_of(labels), array_of(losses))
    share, rows = np.float32(1 - smoothing), _rows
    work: Callable[..., None] = rows

    def piece(start: int, stop: int) -> None:
        work(*arrays, share, start, stop)

    in_pieces(piece, len(logits), logits.size(1))
    return losses, logits
