"""Turns pairs into tensors: each in its own row, padded to the longest, or several in one row."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.data.arrays import Integers, Ragged, ranges
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD


@dataclass(frozen=True)
class Known:
    """Facts about a batch that the host knows from its lengths; asking a GPU would make it wait."""

    source_full: bool = False  # whether no source has padding, as far as is known
    lengths: tuple[Integers, Integers] | None = None
    """Token counts of the source and of the target sentences, ends included, in the order of the
    batch, row after row. For texts: token counts of the rows, and of the texts in them."""


NOTHING = Known()


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, or texts, for one forward pass; padding comes at the end of a row."""

    source: Tensor  # [b, s] int64: source ids and EOS of each pair, then PAD. Texts: [b, 0]
    target_input: Tensor  # [b, t] int64: BOS and target ids of each pair or text, then PAD
    target_output: Tensor  # [b, t] int64: target ids and EOS of each pair or text, then PAD
    pairs: int  # sentence pairs, or rows of texts; 0 if the only row is a placeholder
    known: Known = NOTHING  # facts that the host knows about it

    @property
    def fields(self) -> tuple[Tensor, Tensor, Tensor, Known]:
        """The arguments of the module that holds model and loss."""
        return self.source, self.target_input, self.target_output, self.known

    @property
    def padded_tokens(self) -> int:
        """Number of tokens of source and target_output, padding included."""
        return self.source.numel() + self.target_output.numel()

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on ``device``; copies from pinned memory may overlap other work."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """The same batch in page-locked memory."""
        return self._with(Tensor.pin_memory)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory, which another stream filled, until ``stream`` is done with it."""
        for tensor in (self.source, self.target_input, self.target_output):
            tensor.record_stream(stream)

    def widened(self, rows: int, source_width: int, target_width: int) -> "Batch":
        """Pads the rows to these widths, and adds rows with one token and no label, whose loss and
        gradients are 0, until there are ``rows``."""
        added = rows - len(self.source)

        def wide(tensor: Tensor, width: int, first: int) -> Tensor:
            padded = F.pad(tensor, (0, width - tensor.size(1), 0, added), value=PAD)
            padded[len(tensor) :, :1] = first  # the source of texts has no column to fill
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
    """Puts each pair into its own row, padded to the longest.

    Without pairs, gives one row without a label. Its loss and gradients are 0, but with it a replica
    without pairs can take part in the collective operations.
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
    """Builds a batch from rows of texts, which already contain EOS; ignores ``source``.

    BOS marks where a text begins, or continues in a new row, so a row shows its texts. Without rows,
    gives one without a label, as :func:`collate` does.
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
    row: Integers,
    columns: tuple[Integers, Integers],
    shape: tuple[int, int, int],
) -> Batch:
    """Packs several pairs into a row.

    ``row`` [pairs] is the row of each pair, and ``columns`` [pairs] are where its source and its
    target begin there. ``shape`` is the number of rows, and their width on each side. Without
    pairs, gives one row without a label, as :func:`collate` does.
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
    order = np.lexsort((columns[0], row))  # the same order on both sides
    lengths = (source.lengths + np.int64(1))[order], (target.lengths + np.int64(1))[order]
    return _batch(sources, inputs, outputs, len(source), Known(lengths=lengths))


def _batch(
    source: Integers, inputs: Integers, outputs: Integers, pairs: int, known: Known
) -> Batch:
    made = torch.from_numpy
    return Batch(made(source), made(inputs), made(outputs), pairs, known)


def _padded(rows: Ragged) -> tuple[Integers, NDArray[Any]]:
    """[b, longest + 1] ids with EOS and PAD, and the same without EOS in the type of the ids."""
    values, lengths = rows.values, rows.lengths
    width, step = int(lengths.max()) + 1, values.itemsize
    # We read every row at full width; tokens of the rows after it become PAD.
    shape = (len(values) - width + 1, width)
    windows: NDArray[Any] = np.ndarray(shape, values.dtype, values, 0, (step, step))
    ids = windows[rows.starts]
    ids *= np.arange(width, dtype=np.int32) < lengths[:, None]
    padded = ids.astype(np.int64)
    padded[np.arange(len(lengths)), lengths] = EOS
    return padded, ids
