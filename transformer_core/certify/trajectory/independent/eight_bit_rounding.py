"""Moments of 8 bits: what an optimizer keeps of them, and what that rounding may do.

Moments are rounded in blocks, each divided by its largest element, to the numbers of *dynamic tree
quantization* (Dettmers et al., ICLR 2022, arXiv 2110.02861, sections 2.1 and 2.2): leading zero
bits count decades, a bit that is set ends them, and the bits that are left divide the decade.
The rounding is emulated without the code of the optimizer that is trained with.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_core.parallel.strategies.sharded_weights import named_tensors
from transformer_core.training.assemble import Setup

BLOCK = 256
"""Elements that share a scale."""
SMALLEST = 4096
"""Elements below which a tensor keeps moments of 32 bits."""


def levels(signed: bool) -> Tensor:
    """The numbers of 8 bits between -1, or 0, and 1, sorted; in 64 bit."""
    bits = 7 if signed else 8
    found = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for zeros in range(7):
        parts = 2 ** (bits - 1 - zeros)
        edges = torch.linspace(0.1, 1.0, parts + 1, dtype=torch.float64)
        middles = (edges[:-1] + edges[1:]) / 2
        found += [middles * 10.0**-zeros, -middles * 10.0**-zeros][: 1 + signed]
    return torch.cat(found).sort().values


def rounded(values: Tensor, sizes: Sequence[int], signed: bool) -> Tensor:
    """``values``, tensors of these sizes one after the other, each element as the nearest level of
    its block."""
    known = levels(signed)
    parts = []
    for tensor in values.split(list(sizes)):
        if tensor.numel() < SMALLEST:
            parts.append(tensor)
            continue
        blocks = torch.nn.functional.pad(tensor, (0, -tensor.numel() % BLOCK)).view(-1, BLOCK)
        largest = blocks.abs().amax(1, keepdim=True)
        scaled = blocks / torch.where(largest == 0, 1.0, largest)
        above = torch.searchsorted(known, scaled).clamp(1, len(known) - 1)
        low, high = known[above - 1], known[above]
        nearest = torch.where(scaled - low < high - scaled, low, high)
        parts.append((nearest * largest).flatten()[: tensor.numel()])
    return torch.cat(parts)


def kept_moments(setup: Setup) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """First and second moment of every parameter as its optimizer keeps them, by the parameter's
    name; null where they are not kept in 8 bits, or there are none yet."""
    if setup.spec.training.optimizer.state.moment_bits != 8:
        return None
    parameters = {n: p for n, p in named_tensors(setup.model).items() if p.requires_grad}
    first, second = (
        {name: _kept(setup.optimizer.state[p], number, p) for name, p in parameters.items()}
        for number in (1, 2)
    )
    return first, second


def _kept(state: dict[str, Tensor], number: int, parameter: Tensor) -> Tensor:
    moments = state[f"state{number}"]
    if moments.dtype != torch.uint8:
        return moments
    values = state[f"qmap{number}"][moments.flatten().long()]
    scales = state[f"absmax{number}"].repeat_interleave(BLOCK)[: values.numel()]
    return (values * scales).view_as(parameter)
