"""Computes on real tokens only, by gathering those of a batch in one list.

Operations on single tokens (projections, feed-forward layers, normalization, dropout) then skip all
padding. Attention takes the sentences in blocks of similar lengths, each padded to its longest, so
that a block needs only a few batched matrix products. ByteTransformer (arXiv 2210.03052) does this
with one block, and FlashAttention's kernels of variable length do it on GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from transformer_core.data.tokenizing.special_tokens import PAD

Counts = NDArray[np.int64]  # tokens of each sentence


def has_values(tokens: Tensor) -> bool:
    """Whether a tensor has values; predictions work with shapes only."""
    return not isinstance(tokens, FakeTensor) and not tokens.is_meta


def expect_lengths(tokens: Tensor, lengths: Sequence[int]) -> None:
    """States how many real tokens each row of ``tokens`` [b, t], a tensor without values, has."""
    tokens.expected_lengths = list(lengths)  # type: ignore[attr-defined]


def expected_lengths(tokens: Tensor) -> list[int]:
    """The stated lengths, or the upper bound that every row is full."""
    rows, width = tokens.shape
    return getattr(tokens, "expected_lengths", [width] * rows)


def places(tokens: Tensor, count: int | None = None) -> Tensor:
    """Indices [n] of the real tokens in ``tokens`` [b, t], flattened. Give n as ``count`` if known;
    otherwise the host must wait for a GPU to count."""
    if not has_values(tokens):
        return torch.arange(sum(expected_lengths(tokens)), device=tokens.device)
    return _true(tokens.flatten() != PAD, count)


def _true(chosen: Tensor, count: int | None) -> Tensor:
    """Indices [m] of the true elements of ``chosen`` [n]; m is ``count``, if known."""
    found = chosen.nonzero() if count is None else chosen.nonzero_static(size=count)
    return found.squeeze(-1)


@dataclass(frozen=True)
class Sentences:
    """One side of a batch as a list of n real tokens, sentence after sentence."""

    shape: torch.Size  # [b, t] of the batch
    places: Tensor  # [n] index of each token in the flattened batch
    lengths: Tensor  # [sentences] token count of each; at least 1
    longest: int  # token count of the longest sentence, or more
    fill: int = 0
    """Number of empty rows after the n tokens, which round up the length of the list."""
    known: Counts | None = None
    """[sentences] token count of each, if the host knows it, or the tensors have no values."""

    def grid(self, chosen: Tensor, width: int) -> Tensor:
        """[b, width] indices of the tokens of the ``chosen`` sentences [b]; n after their ends."""
        lengths = self.lengths[chosen]
        column = torch.arange(width, device=lengths.device)
        starts = (self.lengths.cumsum(0) - self.lengths)[chosen]
        numbers = starts[:, None] + column
        return numbers.masked_fill(column >= lengths[:, None], len(self.places))

    @cached_property
    def starts(self) -> Tensor:
        """[sentences + 1] int32: the limits of the sentences among the tokens."""
        return F.pad(self.lengths.cumsum(0), (1, 0)).int()

    @property
    def within(self) -> Tensor:
        """[n + fill] position of each token in its sentence, from 0."""
        index = torch.arange(len(self.places), device=self.places.device)
        starts = self.lengths.cumsum(0) - self.lengths
        found = index - starts.repeat_interleave(self.lengths, output_size=len(index))
        return F.pad(found, (0, self.fill))

    def rows(self, x: Tensor) -> Tensor:
        """x [b, t, ...] -> the tokens [1, n + fill, ...], followed by zeros (PAD is 0, too)."""
        found = x.flatten(0, 1).index_select(0, self.places)
        if self.fill:
            found = torch.cat([found, found.new_zeros(self.fill, *found.shape[1:])])
        return found[None]

    def batch(self, rows: Tensor) -> Tensor:
        """Tokens [1, n + fill, d] -> [b, t, d], with zeros at padding."""
        b, t = self.shape
        taken = rows[0, : len(self.places)]
        flat = rows.new_zeros(b * t, rows.size(-1)).index_copy(0, self.places, taken)
        return flat.view(b, t, -1)


def sentences_of(
    tokens: Tensor, segments: Tensor | None = None, multiple: int = 1, known: Counts | None = None
) -> Sentences:
    """The sentences or texts of tokens [b, t], numbered by ``segments`` [b, t]; without these, each row
    is one.

    The list has a ``multiple`` of rows. ``known`` are the lengths, if the host knows them.
    """
    index = places(tokens, None if known is None else int(known.sum()))
    # ``longest`` is the width, since asking a GPU for the exact length would make the host wait.
    fill, longest = -len(index) % multiple, tokens.size(1)
    if not has_values(tokens):
        expected = np.array(expected_lengths(tokens))
        found = torch.empty(len(expected), dtype=torch.int64, device=tokens.device)
        return Sentences(tokens.shape, index, found, longest, fill, expected)
    rows = torch.arange(len(tokens), device=tokens.device)[:, None] * (longest + 1)
    own = (rows + (0 if segments is None else segments)).expand_as(tokens).flatten()[index]
    changes = own.diff(prepend=own.new_full((1,), -1)) != 0
    begins = _true(changes, None if known is None else len(known))
    lengths = begins.diff(append=begins.new_full((1,), len(own)))
    return Sentences(tokens.shape, index, lengths, longest, fill, known)


@dataclass(frozen=True)
class _Grids:
    """The blocks of a batch, as indices of tokens."""

    queries: list[Tensor]  # [b, m] each
    keys: list[Tensor]  # likewise
    query_places: Tensor  # [n] index of each query in the flattened, concatenated blocks
    key_places: Tensor  # likewise for the keys
    masks: list[Tensor]  # [b, 1, m] each: True at keys


class Blocks:
    """Which token attends to which: every query to the keys of its sentence, and with ``causal`` to
    those up to its own position.

    It replaces the mask if the input of a layer is a list of tokens [1, n, d].
    """

    def __init__(self, queries: Sentences, keys: Sentences, blocks: int, causal: bool) -> None:
        self.causal = causal
        self.sentences = queries, keys
        self.blocks = blocks

    @cached_property
    def _grids(self) -> "_Grids":
        """Built when a layer first needs blocks; a kernel that takes sentences never does."""
        queries, keys = self.sentences
        order = (queries.lengths * (keys.longest + 1) + keys.lengths).argsort()
        parts = order.chunk(min(self.blocks, len(order)))
        widths = self._widths(parts)
        of_queries = [queries.grid(part, m) for part, (m, _) in zip(parts, widths, strict=True)]
        of_keys = of_queries
        if queries is not keys:
            of_keys = [keys.grid(part, m) for part, (_, m) in zip(parts, widths, strict=True)]
        return _Grids(
            queries=of_queries,
            keys=of_keys,
            query_places=_inverse(of_queries, len(queries.places)),
            key_places=_inverse(of_keys, len(keys.places)),
            masks=[(grid < len(keys.places))[:, None, :] for grid in of_keys],
        )

    def _widths(self, parts: Sequence[Tensor]) -> list[tuple[int, int]]:
        """Token counts of the longest query and key sentence in each of ``parts``."""
        queries, keys = self.sentences
        if queries.known is None or keys.known is None:
            return [
                (int(queries.lengths[part].max()), int(keys.lengths[part].max())) for part in parts
            ]
        # The same order as on the device: sentences with equal sort keys are equally long.
        order = np.lexsort((keys.known, queries.known))
        blocks = np.split(order, np.cumsum([len(part) for part in parts])[:-1])
        return [(int(queries.known[block].max()), int(keys.known[block].max())) for block in blocks]

    def sentence_by_sentence(
        self, kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, dropout: float
    ) -> Tensor:
        """Attention by a ``kernel`` that takes sentences of any lengths, without blocks.

        The kernel does not get the empty rows at the end of a list, where it would leave NaNs.
        """
        queries, keys = self.sentences
        n, m = len(queries.places), len(keys.places)
        heads = kernel(
            *(x[0, :, :count].transpose(0, 1) for x, count in ((q, n), (k, m), (v, m))),
            (queries.starts, keys.starts),
            (queries.longest, keys.longest),
            self.causal,
            dropout,
        ).transpose(0, 1)
        return (F.pad(heads, (0, 0, 0, queries.fill)) if queries.fill else heads)[None]

    def attention(
        self, attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *dropout: Any
    ) -> Tensor:
        """q [1, h, n, k], k and v [1, h, m, k] -> heads [1, h, n, k]. n and m include the empty rows
        of the lists, which are 0 in the result."""
        grids, fill = self._grids, self.sentences[0].fill
        spread = zip(
            _Spread.apply(q[0], grids.query_places, *grids.queries),
            _Spread.apply(k[0], grids.key_places, *grids.keys),
            _Spread.apply(v[0], grids.key_places, *grids.keys),
            grids.masks,
            strict=True,
        )
        heads = []
        for query, key, value, mask in spread:
            if self.causal:  # padding comes after all tokens that a token may see
                heads.append(attend(query, key, value, None, True, *dropout))
            else:
                heads.append(attend(query, key, value, mask, False, *dropout))
        result: Tensor = _Collect.apply(grids.query_places, grids.queries, *heads)
        return (F.pad(result, (0, 0, 0, fill)) if fill else result)[None]


def _inverse(grids: Sequence[Tensor], count: int) -> Tensor:
    """[count] position of each index in the flattened, concatenated grids."""
    flat = torch.cat([grid.flatten() for grid in grids])
    result = flat.new_empty(count + 1)
    result[flat] = torch.arange(len(flat), device=flat.device)
    return result[:count]


class _Spread(torch.autograd.Function):
    """Rows [h, n + fill, k], inverse [n], grids [b, m] -> a tensor [h, b, m, k] for each grid.

    Padding gets arbitrary rows, on which nothing may depend, and their gradient is left out. The
    backward pass gathers, too, while torch's own gradient of indexing would scatter and add.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, inverse: Tensor, *grids: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(inverse)
        ctx.fill = rows.size(1) - len(inverse)
        last = rows.size(1) - 1
        return tuple(
            rows.index_select(1, grid.flatten().clamp(max=last)).unflatten(1, grid.shape)
            for grid in grids
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (inverse,) = ctx.saved_tensors
        flat = torch.cat([grad.flatten(1, 2) for grad in grads], dim=1)
        gradient = flat.index_select(1, inverse)
        if ctx.fill:
            gradient = F.pad(gradient, (0, 0, 0, ctx.fill))
        return (gradient, None, *(None for _ in grads))


class _Collect(torch.autograd.Function):
    """Inverse [n], grids [b, m], tensors [h, b, m, k] -> rows [h, n, k]: undoes :class:`_Spread`.

    The gradient at padding is 0.
    """

    @staticmethod
    def forward(ctx: Any, inverse: Tensor, grids: list[Tensor], *heads: Tensor) -> Tensor:
        ctx.grids = grids
        flat = torch.cat([part.flatten(1, 2) for part in heads], dim=1)
        return flat.index_select(1, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with_zero = torch.cat([grad, grad.new_zeros(len(grad), 1, grad.size(2))], dim=1)
        parts = (
            with_zero.index_select(1, grid.flatten()).unflatten(1, grid.shape) for grid in ctx.grids
        )
        return (None, None, *parts)
