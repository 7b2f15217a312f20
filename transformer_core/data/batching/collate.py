"""Pairs as tensors: a row for each, padded to the longest, or several in a row."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.data.arrays import Ragged, ranges
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Known:
    """Facts of a batch that the host knows from its lengths; asking a GPU makes the host wait."""

    source_full: bool = False  # whether it is known that no source has padding
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """Tokens of each source and of each target sentence, ends included, in the order in which they
    stand in the batch, row after row; of texts, those of each row and of each text in it."""


NOTHING = Known()


@dataclass(frozen=True)
class Batch:
    """Pairs of sentences for one forward pass, one after the other in a row, then padding."""

    source: Tensor
    """[b, s] int64: of each pair source ids and EOS; PAD up to the longest row. [b, 0] of texts."""
    target_input: Tensor  # [b, t] int64: of each pair, or text of a row, BOS and target ids; PAD
    target_output: Tensor  # [b, t] int64: of each pair, or text of a row, target ids and EOS; PAD
    pairs: int  # sentence pairs, or rows of texts; 0 if the row is a placeholder
    known: Known = NOTHING  # what the host knows of it

    @property
    def fields(self) -> tuple[Tensor, Tensor, Tensor, Known]:
        """The arguments of the module around model and loss."""
        return self.source, self.target_input, self.target_output, self.known

    @property
    def padded_tokens(self) -> int:
        """Tokens of source and target_output with padding."""
        return self.source.numel() + self.target_output.numel()

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on ``device``; copies from pinned memory may overlap other work."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """The same batch in page-locked memory."""
        return self._with(Tensor.pin_memory)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until ``stream`` is done with the batch, which another stream filled."""
        for tensor in (self.source, self.target_input, self.target_output):
            tensor.record_stream(stream)

    def widened(self, rows: int, source_width: int, target_width: int) -> "Batch":
        """The same rows with padding at their ends, up to these widths, and rows behind them that
        have one token and no label, so that their loss and gradients are 0."""
        added = rows - len(self.source)

        def wide(tensor: Tensor, width: int, first: int) -> Tensor:
            padded = F.pad(tensor, (0, width - tensor.size(1), 0, added), value=PAD)
            padded[len(tensor) :, :1] = first  # texts have a source of no width
            return padded

        known = self.known
        if (*self.source.shape, self.target_input.size(1)) == (rows, source_width, target_width):
            return self  # padding by nothing would still copy
        lengths = known.lengths
        if lengths is not None:
            fillers = np.ones(added, np.int64)
            lengths = np.append(lengths[0], fillers), np.append(lengths[1], fillers)
        return replace(
            self,
            source=wide(self.source, source_width, EOS),
            target_input=wide(self.target_input, target_width, BOS),
            target_output=wide(self.target_output, target_width, PAD),
            known=Known(
                known.source_full and source_width == self.source.size(1) and not added, lengths
            ),
        )

    def _with(self, change: Any) -> "Batch":
        return replace(
            self,
            source=change(self.source),
            target_input=change(self.target_input),
            target_output=change(self.target_output),
        )


def collate(source: Ragged, target: Ragged) -> Batch:
    """Each pair in a row of its own, padded to the longest.

    No pairs become one row without a label: its loss and gradients are 0, but a replica that got
    no pair still takes part in the collective operations.
    """
    if not len(source):
        one, length = torch.full((1, 1), EOS), np.ones(1, np.int64)
        known = Known(lengths=(length, length))
        return Batch(one, torch.full_like(one, BOS), torch.full_like(one, PAD), 0, known)
    sources, _ = _padded(source)
    outputs, ids = _padded(target)
    inputs = np.empty_like(outputs)
    inputs[:, 0] = BOS
    inputs[:, 1:] = ids[:, :-1]
    lengths = source.lengths + np.int64(1), target.lengths + np.int64(1)
    full = bool((source.lengths == source.lengths[0]).all())
    return _batch(sources, inputs, outputs, len(source), Known(full, lengths))


def collate_texts(source: Ragged, target: Ragged) -> Batch:
    """Rows of texts, which hold the ends of texts themselves; ``source`` is not used.

    BOS stands where a text begins, or goes on in a new row: with it, rows tell their texts apart.
    No rows become one without a label, as in :func:`collate`.
    """
    if not len(target):
        return replace(collate(source, target), source=torch.empty((1, 0), dtype=torch.int64))
    width = int(target.lengths.max())
    outputs = np.full((len(target), width), PAD, np.int64)
    outputs[np.arange(width) < target.lengths[:, None]] = target.flat()
    inputs = np.full_like(outputs, BOS)
    inputs[:, 1:] = np.where(outputs[:, :-1] == EOS, BOS, outputs[:, :-1])
    inputs[outputs == PAD] = PAD
    begins = np.flatnonzero(inputs[inputs != PAD] == BOS)
    documents = np.diff(begins, append=int(target.lengths.sum()))
    known = Known(lengths=(target.lengths.astype(np.int64), documents))
    return _batch(np.empty((len(target), 0), np.int64), inputs, outputs, len(target), known)


def collate_packed(
    source: Ragged,
    target: Ragged,
    row: NDArray[np.int64],
    columns: tuple[NDArray[np.int64], NDArray[np.int64]],
    shape: tuple[int, int, int],
) -> Batch:
    """Several pairs in a row.

    ``row`` [pairs] is that of each pair, and ``columns`` [pairs] say where its source and its
    target begin there; ``shape`` is the number of rows, and their tokens on both sides. No pairs
    become one row without a label, as in :func:`collate`.
    """
    if not len(source):
        return collate(source, target)
    rows, *widths = shape
    sources, outputs = (np.full((rows, width), PAD, np.int64) for width in widths)
    inputs = np.full_like(outputs, PAD)
    begins = row * widths[0] + columns[0]
    sources.reshape(-1)[ranges(begins, source.lengths)] = source.flat()
    sources.reshape(-1)[begins + source.lengths] = EOS
    begins = row * widths[1] + columns[1]
    places, ids = ranges(begins, target.lengths), target.flat()
    outputs.reshape(-1)[places] = ids
    outputs.reshape(-1)[begins + target.lengths] = EOS
    inputs.reshape(-1)[places + 1] = ids
    inputs.reshape(-1)[begins] = BOS
    order = np.lexsort((columns[0], row))  # on both sides alike
    lengths = (source.lengths + np.int64(1))[order], (target.lengths + np.int64(1))[order]
    return _batch(sources, inputs, outputs, len(source), Known(lengths=lengths))


def _batch(source: Ids, inputs: Ids, outputs: Ids, pairs: int, known: Known) -> Batch:
    made = torch.from_numpy
    return Batch(made(source), made(inputs), made(outputs), pairs, known)


def _padded(rows: Ragged) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """[b, longest + 1] ids with EOS and PAD, and the same without EOS in the type of the ids."""
    values, lengths = rows.values, rows.lengths
    width, step = int(lengths.max()) + 1, values.itemsize
    # Every row is read at the full width at once; tokens of the next rows become PAD.
    shape = (len(values) - width + 1, width)
    windows: NDArray[Any] = np.ndarray(shape, values.dtype, values, 0, (step, step))
    ids = windows[rows.starts]
    ids *= np.arange(width, dtype=np.int32) < lengths[:, None]
    padded = ids.astype(np.int64)
    padded[np.arange(len(lengths)), lengths] = EOS
    return padded, ids
