"""How far a tensor is from the one that it should be."""

import math

import torch
from torch import Tensor

from schemas.results.checks import TensorDistance


def distance(
    name: str, step: int, found: Tensor, expected: Tensor, rounding: float
) -> TensorDistance:
    """``found`` compared with ``expected``; for ``rounding`` see :class:`TensorDistance`.

    A tensor that is missing, of another shape or not finite is as far off as one of zeros.
    """
    if found.shape != expected.shape:
        found = torch.zeros_like(expected)
    a, b = found.double().flatten(), expected.double().flatten()
    size, right = float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(b))
    if not math.isfinite(size):
        a, size = torch.zeros_like(b), 0.0
    apart = float(torch.linalg.vector_norm(a - b))
    if right == 0:
        error, ratio, cosine = float(apart > 0), 1.0 + float(apart > 0), 1.0 - float(apart > 0)
    else:
        error, ratio = apart / right, size / right
        cosine = float(a @ b) / (size * right) if size else 0.0
    return TensorDistance(
        tensor=name,
        step=step,
        error=error,
        ratio=ratio,
        cosine=min(1.0, cosine),
        size=right,
        rounding=rounding if math.isfinite(rounding) else 1e300,
    )
