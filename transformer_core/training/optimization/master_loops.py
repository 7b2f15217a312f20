"""The update of AdamW for weights in bfloat16 with masters of 32 bits, as a compiled loop."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

from transformer_core.models.layers.compiled_loops import array_of, in_pieces, like, wide


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _update(  # type: ignore[no-untyped-def]
    weight, gradient, master, first, second, scale, decay, one, two, rate, root, eps
):
    """arXiv 1412.6980, algorithm 1, with decoupled decay; ``rate`` and ``root`` correct a bias."""
    for i in range(len(weight)):
        gradient[i] = like(gradient[i], wide(gradient[i]) * scale)
        g = wide(gradient[i])
        m = one * first[i] + (np.float32(1) - one) * g
        v = two * second[i] + (np.float32(1) - two) * g * g
        first[i], second[i] = m, v
        w = master[i] * decay - rate * m / (np.sqrt(v) * root + eps)
        master[i] = w
        weight[i] = like(weight[i], w)


def update(
    tensors: Sequence[Tensor], step: int, group: Mapping[str, Any], scale: float = 1.0
) -> None:
    """Update weight, gradient, master, first and second moment, all of one shape and contiguous but
    the gradient, in step ``step`` from 1; the gradient is multiplied by ``scale`` first."""
    arrays = [array_of(tensor) for tensor in tensors]
    one, two = group["betas"]
    if not tensors[1].is_contiguous():
        tensors[1].mul_(scale)
        scale = 1.0
    numbers = (
        scale,
        1 - group["lr"] * group["weight_decay"],
        one,
        two,
        group["lr"] / (1 - one**step),
        (1 - two**step) ** -0.5,
        group["eps"],
    )
    constants = [np.float32(number) for number in numbers]

    def piece(start: int, stop: int) -> None:
        _update(*(array[start:stop] for array in arrays), *constants)

    in_pieces(piece, len(arrays[0]))
