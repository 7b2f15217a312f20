"""Linear projections of one input into the heads of queries, keys and values.

Self-attention projects its input into three parts (query, key, value). Cross-attention projects the
decoder's state into one (query) and the memory into two (key, value). Each kind is one class.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from schemas.model import AnyQkv, FusedQkv, SeparateQkv


class Projection(nn.Module):
    """Projects x [b, n, d] into one tensor [b, h, n, k] for each of ``parts``.

    A subclass takes its own schema first, then the arguments of this class.
    """

    def __init__(self, d_model: int, heads: int, parts: Sequence[str]) -> None:
        super().__init__()
        self.heads = heads
        self.parts = tuple(parts)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def blocks(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Part, weight [d, d] and bias [d] of each part: views into the parameters."""
        raise NotImplementedError

    def initialise(self) -> None:
        """Xavier-uniform weights part by part, so that every kind starts from the same numbers."""
        with torch.no_grad():
            for _, weight, bias in self.blocks():
                nn.init.xavier_uniform_(weight)
                nn.init.zeros_(bias)


class SeparateProjection(Projection):
    """One matrix product per part."""

    def __init__(self, spec: SeparateQkv, d_model: int, heads: int, parts: Sequence[str]) -> None:
        super().__init__(d_model, heads, parts)
        for part in self.parts:
            self.add_module(part, nn.Linear(d_model, d_model))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [b, n, d] -> a tensor [b, h, n, k] for each part."""
        split = (self.heads, -1)
        return tuple(
            self.get_submodule(part)(x).unflatten(-1, split).transpose(1, 2) for part in self.parts
        )

    def blocks(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Part, weight [d, d] and bias [d] of each part."""
        for part in self.parts:
            linear = self.get_submodule(part)
            yield part, linear.weight, linear.bias  # type: ignore[misc]


class FusedProjection(Projection):
    """One matrix product for all parts.

    The rows of the weight [parts * d, d] are the parts one after the other, and within a part the
    heads one after the other: the product, seen as [b, n, parts, h, k], holds the parts of a token
    side by side.
    """

    def __init__(self, spec: FusedQkv, d_model: int, heads: int, parts: Sequence[str]) -> None:
        super().__init__(d_model, heads, parts)
        self.linear = nn.Linear(d_model, len(self.parts) * d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [b, n, d] -> a tensor [b, h, n, k] for each part."""
        together = self.linear(x).unflatten(-1, (len(self.parts), self.heads, -1))
        return together.transpose(1, 3).unbind(2)

    def blocks(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Part, weight [d, d] and bias [d] of each part: views into the fused parameters."""
        count = len(self.parts)
        yield from zip(
            self.parts, self.linear.weight.chunk(count), self.linear.bias.chunk(count), strict=True
        )


PROJECTIONS: dict[str, Callable[[Any, int, int, Sequence[str]], Projection]] = {
    "separate": SeparateProjection,
    "fused": FusedProjection,
}
"""Projection by the ``kind`` of its schema."""


def build_projection(spec: AnyQkv, d_model: int, heads: int, parts: Sequence[str]) -> Projection:
    """The projection of ``spec`` into ``parts``, in the order in which they are returned."""
    return PROJECTIONS[spec.kind](spec, d_model, heads, parts)


def canonical_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of ``model`` under the names that ``separate`` gives them.

    Models that differ only in the kind of projection have equal keys and shapes here. The tensors
    are detached and share memory with the model.
    """
    state = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Projection):
            prefix = f"{name}." if name else ""
            for key in module.state_dict():
                del state[prefix + key]
            for part, weight, bias in module.blocks():
                state[f"{prefix}{part}.weight"] = weight.detach()
                state[f"{prefix}{part}.bias"] = bias.detach()
    return state
