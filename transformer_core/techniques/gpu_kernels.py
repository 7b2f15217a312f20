"""Triton kernels for GPUs: one pass over memory between two matrix products.

All compute in 32 bits, whatever the formats of their tensors. They do not store dropout masks:
Philox draws them from a seed and the place of each element, the same in both directions.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_PROGRAMS = 1024
"""Limit of programs in a backward pass; each adds up its rows' gradients of weight and bias."""
_LOGITS = 4096  # number of logits that a program reads at a time


@triton.jit
def add_and_normalize(  # type: ignore[no-untyped-def]
    residual, x, weight, bias, total, normed, means, scales, d, eps, p, seed,
    block: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    """One row: total = residual + dropout(x), normed = layer_norm(total)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < d
    place = row * d + at
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if drops:
        value = tl.where(tl.rand(seed, place.to(tl.int32)) >= p, value / (1 - p), 0.0)
    value += tl.load(residual + place, inside, 0.0).to(tl.float32)
    # Normalize the sum as the next layers see it, rounded to its format.
    value = value.to(total.dtype.element_ty).to(tl.float32)
    tl.store(total + place, value, inside)
    mean = tl.sum(value, 0) / d
    apart = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 0) / d + eps)
    w = tl.load(weight + at, inside, 0.0).to(tl.float32)
    b = tl.load(bias + at, inside, 0.0).to(tl.float32)
    tl.store(normed + place, apart * scale * w + b, inside)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)


@triton.jit
def add_and_normalize_gradient(  # type: ignore[no-untyped-def]
    d_total, d_normed, total, weight, means, scales, d_residual, d_x, d_weight, d_bias,
    rows, d, p, seed, rows_each,
    block: tl.constexpr, drops: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    """Some rows: gradients of residual and x, and the rows' share of those of weight and bias."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    w = tl.load(weight + at, at < d, 0.0).to(tl.float32)
    by_weight = tl.zeros([block], tl.float32)
    by_bias = tl.zeros([block], tl.float32)
    for number in range(rows_each):
        row = program * rows_each + number
        inside = (at < d) & (row < rows)
        place = row * d + at
        g = tl.load(d_normed + place, inside, 0.0).to(tl.float32)
        scale = tl.load(scales + row, row < rows, 0.0)
        value = tl.load(total + place, inside, 0.0).to(tl.float32)
        value = tl.where(inside, (value - tl.load(means + row, row < rows, 0.0)) * scale, 0.0)
        by_weight += g * value
        by_bias += g
        g *= w
        g = (g - value * (tl.sum(g * value, 0) / d) - tl.sum(g, 0) / d) * scale
        if adds:
            g += tl.load(d_total + place, inside, 0.0).to(tl.float32)
        tl.store(d_residual + place, g, inside)
        if drops:
            g = tl.where(tl.rand(seed, place.to(tl.int32)) >= p, g / (1 - p), 0.0)
        tl.store(d_x + place, g, inside)
    tl.store(d_weight + program * d + at, by_weight, at < d)
    tl.store(d_bias + program * d + at, by_bias, at < d)


@triton.jit
def loss_of_row(  # type: ignore[no-untyped-def]
    logits, labels, counted, losses, v, share, lift, padded: tl.constexpr, block: tl.constexpr
):
    """One row of logits, which becomes ``lift`` times its gradient, without the evenly spread share
    of the target. Reads the logits twice and writes them once."""
    row = tl.program_id(0)
    first = logits + row.to(tl.int64) * v
    label = tl.load(labels + row)
    # Before the sums, whose barriers prevent other threads from overwriting it.
    chosen = tl.load(first + label).to(tl.float32)
    top = -float("inf")
    total = 0.0
    for start in range(0, v, block):
        at = start + tl.arange(0, block)
        x = tl.load(first + at, at < v, -float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
    tl.store(losses + row, top + tl.log(total) - share * chosen)
    factor = lift
    if padded:
        factor = tl.where(tl.load(counted + row) != 0, lift, 0.0)
    for start in range(0, v, block):
        at = start + tl.arange(0, block)
        x = tl.load(first + at, at < v, -float("inf")).to(tl.float32)
        g = (tl.exp(x - top) / total - tl.where(at == label, share, 0.0)) * factor
        tl.store(first + at, g, at < v)


def loss_and_gradient(
    logits: Tensor, labels: Tensor, counted: Tensor | None, smoothing: float, lift: float
) -> tuple[Tensor, Tensor]:
    """Loss [n] of logits [n, v], and ``lift`` times its gradient, which overwrites the logits; both
    without the evenly spread share of the target. The gradient is 0 in rows that are not
    ``counted``."""
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        loss_of_row[(len(logits),)](
            logits,
            labels,
            counted if counted is not None else labels,
            losses,
            logits.size(1),
            1 - smoothing,
            lift,
            padded=counted is not None,
            block=min(_LOGITS, triton.next_power_of_2(logits.size(1))),
            num_warps=8,
        )
    return losses, logits


class AddedAndNormalized(torch.autograd.Function):
    """residual, x [..., d], weight, bias [d], p, eps, seed -> residual + dropout(x), in the format
    of ``residual``, and its layer normalization, in that of x, or with ``post`` of ``residual``."""

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        p: float,
        eps: float,
        seed: int,
        post: bool = False,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        residual, x = residual.contiguous(), x.contiguous()
        d, rows = x.size(-1), x.numel() // x.size(-1)
        total, normed = torch.empty_like(residual), torch.empty_like(residual if post else x)
        means, scales = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        ctx.p, ctx.seed = p, seed
        ctx.block, ctx.format = triton.next_power_of_2(d), x.dtype
        add_and_normalize[(rows,)](
            residual, x, weight, bias, total, normed, means, scales, d, eps, p, ctx.seed,
            block=ctx.block, drops=p > 0, num_warps=_warps(ctx.block),
        )  # fmt: skip
        ctx.save_for_backward(total, weight, bias, means, scales)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> tuple[Any, ...]:
        total, weight, bias, means, scales = ctx.saved_tensors
        if d_normed is None:
            d_normed = torch.zeros_like(total)
        d_normed = d_normed.contiguous()
        d_total = None if d_total is None else d_total.contiguous()
        d, rows = total.size(-1), len(means)
        each = max(1, -(-rows // _PROGRAMS))
        programs = -(-rows // each)
        d_residual = torch.empty_like(total)
        d_x = torch.empty_like(total, dtype=ctx.format)
        sums = torch.empty(2, programs, d, dtype=torch.float32, device=total.device)
        add_and_normalize_gradient[(programs,)](
            d_normed if d_total is None else d_total,
            d_normed, total, weight, means, scales, d_residual, d_x, sums[0], sums[1],
            rows, d, ctx.p, ctx.seed, each,
            block=ctx.block, drops=ctx.p > 0, adds=d_total is not None,
            num_warps=_warps(ctx.block),
        )  # fmt: skip
        d_weight, d_bias = sums.sum(1)
        return d_residual, d_x, d_weight.to(weight.dtype), d_bias.to(bias.dtype), *(None,) * 4


def _warps(block: int) -> int:
    return max(1, min(8, block // 128))
