"""Masks of dropout as they were seen, and in how much two of them are alike."""

from collections.abc import Sequence

import torch
from torch import Tensor

from schemas.results.equivalence import Agreement

Mask = tuple[Tensor, float | None]
"""1 kept, 0 dropped, -1 not seen, [rows, ...]; and the factor of what was kept."""


def read_masks(kind: str, names: Sequence[str], signal: Tensor, head: Tensor) -> tuple[Mask, ...]:
    """The masks of the places ``names``, read in a way that is called ``kind``
    (:class:`transformer_core.certify.trajectory.dropout.known_dropout.Gadget`).

    ``signal`` [rows, n, elements] has the levels of all elements but anchors, NaN where a token
    does not tell them; ``head`` [elements] is the head of each.
    """
    if kind == "beside":
        return tuple(_of_output(signal[..., number :: len(names)]) for number in range(len(names)))
    unseen = signal.isnan()
    if kind == "embedding":
        # 0, 1, 2 or 3: the embedding has half the size of the output.
        outer = signal > 1.5
        inner = torch.where(outer, signal - 2, signal) > 0.5
        beside = signal[outer & inner]
        factor = float(beside.mean() - 2) if beside.numel() else None
        return (_mask(inner, unseen), factor), (_mask(outer, unseen), None)
    outer = _mask(signal > 0.5, unseen)
    if kind == "heads":
        # All elements of a head share a weight. The first token of a target has one key.
        signal = signal[:, :1] if "self_attention" in names[0] else signal
        heads = range(int(head.max()) + 1)
        signal = torch.stack([signal[..., head == number].amax(-1) for number in heads], -1)
    inner = torch.where(signal > 1.5, 1.0, torch.where(signal > 0.5, 0.0, -1.0))
    kept = signal[inner == 1]
    return (inner, float(kept.mean() - 1) if kept.numel() else None), (outer, None)


def _mask(kept: Tensor, unseen: Tensor) -> Tensor:
    """What was ``kept``, and what was not but was seen."""
    return kept.float().masked_fill(unseen, -1.0)


def _of_output(signal: Tensor) -> Mask:
    """The mask of levels that are 0 or 1, and the factor of those that are kept."""
    kept = signal > 0.5
    return _mask(kept, signal.isnan()), float(signal[kept].mean()) if kept.any() else None


def between(mask: Tensor, dimension: int) -> Agreement | None:
    """Of neighbours in a dimension of a mask [rows, tokens, elements or heads]."""
    pairs = mask.size(dimension) // 2
    if not pairs:
        return None
    both = mask.narrow(dimension, 0, 2 * pairs).unflatten(dimension, (pairs, 2))
    return agreement(*both.unbind(dimension + 1))


def agreement(one: Tensor, other: Tensor) -> Agreement:
    """In how many elements two masks are alike, where both were seen."""
    seen = (one >= 0) & (other >= 0)
    return Agreement(same=int((one == other)[seen].sum()), of=int(seen.sum()))
