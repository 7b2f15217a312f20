"""Texts one after the other, cut into rows of a context."""

import numpy as np
from numpy.typing import NDArray

from transformer_core.data.arrays import ranges
from transformer_core.data.tokenizing.encoding import Encoded
from transformer_core.data.tokenizing.special_tokens import EOS


def context_rows(texts: Encoded, context: int) -> Encoded:
    """Rows of ``context`` tokens, the last one with what is left.

    Every text ends with EOS; where a row is full, the text goes on in the next one.
    """
    lengths = texts.lengths
    ends = np.cumsum(lengths + 1) - 1
    ids = np.full(len(texts.ids) + len(lengths), EOS, texts.ids.dtype)
    ids[ranges(ends - lengths, lengths)] = texts.ids
    rows = -(-len(ids) // context)
    offsets = np.minimum(np.arange(rows + 1, dtype=np.int64) * context, len(ids))
    return Encoded(ids, offsets)


def no_texts(rows: int, like: NDArray[np.integer]) -> Encoded:
    """The source side of ``rows`` rows: nothing."""
    return Encoded(np.empty(0, like.dtype), np.zeros(rows + 1, np.int64))
