"""Pairs of a store as padded tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.data.store import PairStore
from transformer_core.data.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Batch:
    """Pairs of sentences for one forward pass."""

    source: Tensor
    """[b, s] int64: source ids, EOS, PAD up to the longest row."""
    target_input: Tensor
    """[b, t] int64: BOS, target ids, PAD."""
    target_output: Tensor
    """[b, t] int64: target ids, EOS, PAD."""
    pairs: int
    """Sentence pairs; 0 if the row only stands in for none."""
    tokens: int
    """Non-padding tokens of source and target_output, ends included."""
    padded_tokens: int
    """Tokens of source and target_output with padding."""

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on ``device``; copies from pinned memory may overlap other work."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """The same batch in page-locked memory."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Any) -> "Batch":
        return Batch(
            source=change(self.source),
            target_input=change(self.target_input),
            target_output=change(self.target_output),
            pairs=self.pairs,
            tokens=self.tokens,
            padded_tokens=self.padded_tokens,
        )


def collate(store: PairStore, rows: NDArray[np.int64]) -> Batch:
    """The pairs ``rows``, padded to the longest of them.

    No rows become one row without a label: its loss and gradients are 0, but a replica that got
    no pair still takes part in the collective operations.
    """
    if not len(rows):
        one = torch.full((1, 1), EOS)
        return Batch(one, torch.full_like(one, BOS), torch.full_like(one, PAD), 0, 0, 2)
    source_ids, source_lengths = store.gather_source(rows)
    target_ids, target_lengths = store.gather_target(rows)
    source, _ = _padded(source_ids, source_lengths)
    target_output, inside = _padded(target_ids, target_lengths)
    target_input = np.full_like(target_output, PAD)
    target_input[:, 0] = BOS
    target_input[:, 1:][inside[:, :-1]] = target_ids
    return Batch(
        source=torch.from_numpy(source),
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target_output),
        pairs=len(rows),
        tokens=len(source_ids) + len(target_ids) + 2 * len(rows),
        padded_tokens=source.size + target_output.size,
    )


def _padded(
    ids: NDArray[Any], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[b, longest + 1] ids with EOS and PAD, and which places hold ids."""
    inside = np.arange(lengths.max() + 1) < lengths[:, None]
    padded = np.full(inside.shape, PAD, np.int64)
    padded[inside] = ids
    padded[np.arange(len(lengths)), lengths] = EOS
    return padded, inside
