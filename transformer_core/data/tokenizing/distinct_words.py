"""The distinct words of texts, found by whole arrays.

It needs no compiled code of its own, whose library takes longer to import than a small corpus to
encode; :mod:`transformer_core.data.tokenizing.word_table` finds the same words, which it keeps from
one call to the next, and faster where there are many.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from transformer_core.data.tokenizing.word_boundaries import SPACE, SPACES_BEYOND_ASCII

_BYTES = np.arange(256)
_VISIBLE = (_BYTES > SPACE) & ~np.isin(_BYTES, SPACES_BEYOND_ASCII)
"""[256] whether a space before this byte begins a word: it may be no white space."""
_LETTER = np.isin(_BYTES | 0x20, range(ord("a"), ord("z") + 1))
"""[256] whether a byte is a letter from a to z, of any case."""
_PUNCTUATION = np.isin(_BYTES, [*b".,!?;:"])
"""[256] whether a byte behind such a letter begins a word, where that is asked for."""


class DistinctWords(NamedTuple):
    """The words of n texts, in order, by the distinct ones."""

    words: pa.LargeStringArray
    """Every distinct word once."""
    numbers: NDArray[np.int32]
    """[words of the texts] which of these each is."""
    firsts: NDArray[np.int64]
    """[n + 1] number of the first word of each text."""


def distinct_words(
    data: NDArray[np.uint8], limits: NDArray[np.int64], punctuation: bool
) -> DistinctWords:
    """The words of texts; text i is ``data[limits[i]:limits[i + 1]]``, and not all are empty.

    A word ends before each space that is followed by a visible character and, with ``punctuation``,
    between a letter and one of ``. , ! ? ; :``.
    """
    text, limits = data[limits[0] : limits[-1]], limits - limits[0]
    filled = limits[:-1] < limits[1:]
    begins = np.zeros(len(text), np.bool_)
    begins[:-1] = (text[:-1] == SPACE) & _VISIBLE[text[1:]]
    # What follows the last byte of a text is another text.
    begins[limits[1:][filled] - 1] = False
    if punctuation:
        begins[1:] |= _PUNCTUATION[text[1:]] & _LETTER[text[:-1]]
    begins[limits[:-1][filled]] = True
    offsets = np.append(np.flatnonzero(begins), len(text))
    column = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))
    )
    found = column.dictionary_encode()
    numbers = np.frombuffer(found.indices.buffers()[1], np.int32, len(column))
    return DistinctWords(found.dictionary, numbers, np.searchsorted(offsets, limits))
