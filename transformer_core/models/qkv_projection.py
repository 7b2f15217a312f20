"""Linear projections of one input into the heads of queries, keys and values.

Self-attention projects its input into three parts (query, key, value). Cross-attention projects the
decoder's state into one (query) and the memory into two (key, value). Each kind is one class.

Parts may have fewer heads than the queries (grouped queries, arXiv 2305.13245), all of one width.

On separate CUDA streams, kernels too small to fill a device can run at the same time. Leaving the
current stream takes two precautions:

- Order. A side stream must wait for the kernels that still write its input, and the current stream
  for the results. We use events, which do not make the host wait.
- Memory. When a tensor dies, the allocator gives its memory to the next kernel of the stream that
  allocated it. ``record_stream`` tells it which other stream has used the memory.

The backward pass needs neither: autograd runs each operation on the stream of its forward pass,
makes streams wait for each other when a gradient passes between them, and finally makes the caller's
stream wait for those that produced gradients of parameters (PyTorch, "CUDA semantics", stream
semantics of backward passes).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, cuda, nn

from schemas.config.model import AnyQkv, FusedQkv, LayoutQkv, SeparateQkv, StreamsQkv
from schemas.errors import Unsupported

Block = tuple[str, Tensor, Tensor | None]  # part, weight and bias


class Projection(nn.Module):
    """Projects x [b, n, d] into one tensor [b, h, n, k] for each of ``parts``, k = d / ``heads``.

    A subclass takes its own schema first, then the arguments of this class. ``heads_of`` is the
    number of heads of each part, unless all have ``heads``.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        parts: Sequence[str],
        heads_of: Sequence[int] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.parts = tuple(parts)
        self.heads_of = list(heads_of or [heads] * len(self.parts))
        self.width = d_model // heads
        self.rows_of = [count * self.width for count in self.heads_of]
        self.has_bias = bias

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def blocks(self) -> Iterator[Block]:
        """Yields the name, weight [h * k, d] and bias [h * k] or None of each part, as views into
        the parameters."""
        raise NotImplementedError

    def initialise(self, draw: Callable[[Tensor], Any] = nn.init.xavier_uniform_) -> None:
        """Draws weights part by part, so that every kind starts from the same numbers."""
        with torch.no_grad():
            for _, weight, bias in self.blocks():
                draw(weight)
                if bias is not None:
                    nn.init.zeros_(bias)


class SeparateProjection(Projection):
    """One matrix product per part."""

    def __init__(self, spec: SeparateQkv | StreamsQkv, d_model: int, *args: Any) -> None:
        super().__init__(d_model, *args)
        for part, rows in zip(self.parts, self.rows_of, strict=True):
            self.add_module(part, nn.Linear(d_model, rows, self.has_bias))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.project(part, x) for part in self.parts)

    def project(self, part: str, x: Tensor) -> Tensor:
        """x [b, n, d] -> the heads [b, h, n, k] of one part."""
        return self.get_submodule(part)(x).unflatten(-1, (-1, self.width)).transpose(1, 2)

    def blocks(self) -> Iterator[Block]:
        for part in self.parts:
            linear = self.get_submodule(part)
            yield part, linear.weight, linear.bias  # type: ignore[misc]


class StreamsProjection(SeparateProjection):
    """One matrix product per part, each on a separate CUDA stream.

    A single part, such as the query of cross-attention, stays on the current stream. Raises
    Unsupported on a host without CUDA, and for an input on the CPU.
    """

    def __init__(self, spec: StreamsQkv, d_model: int, *args: Any) -> None:
        require_cuda()
        super().__init__(spec, d_model, *args)
        self.run = between_synchronisations if spec.device_synchronise else concurrently

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if len(self.parts) == 1 or x.is_meta:
            return super().forward(x)
        return tuple(self.run([partial(self.project, part) for part in self.parts], x))


class FusedProjection(Projection):
    """One matrix product for all parts.

    The rows of the weight are ordered by part, then by head. The product, viewed as
    [b, n, heads of all parts, k], therefore holds the parts of a token side by side.
    """

    def __init__(self, spec: FusedQkv, d_model: int, *args: Any) -> None:
        super().__init__(d_model, *args)
        self.linear = nn.Linear(d_model, sum(self.rows_of), self.has_bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if len(set(self.heads_of)) == 1:
            together = self.linear(x).unflatten(-1, (len(self.parts), -1, self.width))
            return together.transpose(1, 3).unbind(2)
        together = self.linear(x).unflatten(-1, (-1, self.width))
        return together.transpose(1, 2).split(self.heads_of, dim=1)

    def blocks(self) -> Iterator[Block]:
        weights = self.linear.weight.split(self.rows_of)
        biases = self.linear.bias.split(self.rows_of) if self.has_bias else [None] * len(self.parts)
        yield from zip(self.parts, weights, biases, strict=True)


class LayoutProjection(Projection):
    """One matrix product, stored in memory with the batch or the parts outermost.

    As in the original study, the rows of the weight [d * parts, d] are ordered by head, element and
    part. We permute the product, viewed as [b, n, h, k, parts], to [b, parts, h, n, k] or to
    [parts, b, h, n, k], then split it into its parts.

    A permutation alone moves no data: a part of the view has the same address and strides in both
    orders. The study's compiler divided a tensor over devices along its outermost dimension, so it
    had to move data to separate queries, keys and values of [parts, b, h, n, k], but not of the
    other order. If every device holds its own batch, no such transfer exists, so we write out the
    permuted tensor, and its gradient too. Both orders copy the same bytes to different places: each
    part of [parts, b, h, n, k] is one piece of memory, but each part of [b, parts, h, n, k] is b
    pieces, which a batched matrix product over b and h copies again.
    """

    def __init__(self, spec: LayoutQkv, d_model: int, heads: int, parts: Sequence[str]) -> None:
        super().__init__(d_model, heads, parts)
        self.linear = nn.Linear(d_model, len(self.parts) * d_model)
        self.batch_outermost = spec.outermost == "batch"

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        together = self.linear(x).unflatten(-1, (self.heads, -1, len(self.parts)))
        if self.batch_outermost:
            return together.permute(0, 4, 2, 1, 3).contiguous().unbind(1)
        return together.permute(4, 0, 2, 1, 3).contiguous().unbind(0)

    def blocks(self) -> Iterator[Block]:
        split = (-1, len(self.parts))
        weights = self.linear.weight.unflatten(0, split).unbind(1)
        biases = self.linear.bias.unflatten(0, split).unbind(1)
        yield from zip(self.parts, weights, biases, strict=True)


PROJECTIONS: dict[str, Callable[..., Projection]] = {
    "separate": SeparateProjection,
    "fused": FusedProjection,
    "streams": StreamsProjection,
    "layout": LayoutProjection,
}
"""Projection by the ``kind`` of its schema."""


def build_projection(
    spec: AnyQkv, d_model: int, heads: int, parts: Sequence[str], *grouped: Any
) -> Projection:
    """Builds the projection of ``spec`` into ``parts``, which it returns in this order.

    ``grouped`` are the heads of each part and whether there is a bias, which layouts do not take.
    """
    return PROJECTIONS[spec.kind](spec, d_model, heads, parts, *grouped)


def project_together(projections: Sequence[Projection], x: Tensor) -> list[tuple[Tensor, ...]]:
    """Applies all ``projections`` to the same x [b, n, d] with one matrix product, for which it
    concatenates their weights."""
    blocks = [block for projection in projections for block in projection.blocks()]
    weight = torch.cat([weight for _, weight, _ in blocks])
    bias = torch.cat([bias for _, _, bias in blocks if bias is not None])
    heads = projections[0].heads
    product = F.linear(x, weight, bias).unflatten(-1, (len(blocks), heads, -1))
    parts = product.transpose(1, 3).unbind(2)
    step = len(blocks) // len(projections)
    return [parts[start : start + step] for start in range(0, len(parts), step)]


def canonical_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of ``model`` by names that do not depend on how it computes: those
    of ``separate`` projections, or those of the model's own ``canonical_state_dict``.

    A tensor with several names, such as a tied matrix of another library, appears once, under the
    first, so that sums count it once. The tensors are detached and share memory with the model.
    """
    own = getattr(model, "canonical_state_dict", None)
    state = dict(model.state_dict() if own is None else own())
    for name, module in model.named_modules() if own is None else ():
        if isinstance(module, Projection):
            prefix = f"{name}." if name else ""
            for key in module.state_dict():
                del state[prefix + key]
            for part, weight, bias in module.blocks():
                state[f"{prefix}{part}.weight"] = weight.detach()
                if bias is not None:
                    state[f"{prefix}{part}.bias"] = bias.detach()
    unique: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        # Detached tensors have no identity to compare. Parts of a parameter differ in offset or
        # shape.
        storage = tensor.untyped_storage()._cdata
        view = (storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        unique.setdefault(view, (name, tensor))
    return dict(unique.values())


Work = Sequence[Callable[[Tensor], Tensor]]  # functions that do not depend on each other


def require_cuda() -> None:
    if not cuda.is_available():
        raise Unsupported("needs CUDA: the streams are queues of a GPU, and this host has none")


def require_on_cuda(x: Tensor) -> None:
    if x.device.type != "cuda":
        raise Unsupported(
            f"needs CUDA: the streams are queues of a GPU, and the input is on the {x.device.type}"
        )


def concurrently(work: Work, x: Tensor) -> list[Tensor]:
    """Applies each function to ``x`` on a separate stream.

    All calls in the process share the streams. Raises Unsupported if ``x`` is not on a CUDA device.
    """
    require_on_cuda(x)
    current = cuda.current_stream(x.device)
    streams = [_side_stream(x.device, number) for number in range(len(work))]
    for stream in streams:
        stream.wait_stream(current)
    results = _launch(work, x, streams, current)
    for stream in streams:
        current.wait_stream(stream)
    return results


def between_synchronisations(work: Work, x: Tensor) -> list[Tensor]:
    """Like :func:`concurrently`, but as the original study did it (its section 3.4).

    Every call creates streams and, in place of events, makes the host wait twice until the whole
    device is idle. Raises Unsupported if ``x`` is not on a CUDA device.
    """
    require_on_cuda(x)
    streams = [cuda.Stream(x.device) for _ in work]
    cuda.synchronize(x.device)
    # Unlike the study, _launch records the streams: that is free, and needed for correct results.
    results = _launch(work, x, streams, cuda.current_stream(x.device))
    cuda.synchronize(x.device)
    return results


@cache
def _side_stream(device: torch.device, number: int) -> cuda.Stream:
    return cuda.Stream(device)


def _launch(
    work: Work, x: Tensor, streams: Sequence[cuda.Stream], current: cuda.Stream
) -> list[Tensor]:
    results = []
    for function, stream in zip(work, streams, strict=True):
        with cuda.stream(stream):
            result = function(x)
        x.record_stream(stream)
        result.record_stream(current)
        results.append(result)
    return results
