"""Text to token ids, each distinct word encoded once.

Where the words of a text are independent (:mod:`transformer_core.data.tokenizing.words`), they are
found in its UTF-8 bytes, and only those that were not met before reach the tokenizer.
"""

import threading
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transformer_core.data.arrays import arrow_array, ranges, utf8
from transformer_core.data.tokenizing.existing import Described
from transformer_core.data.tokenizing.words import (
    Ids,
    distinct_words,
    encode_texts,
    punctuation_is_independent,
    words_are_independent,
)


class Encoded(NamedTuple):
    """Token ids of n texts: text i has ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[Any]
    """[tokens] ids of all texts in a row, in an unsigned integer type."""
    offsets: NDArray[np.int64]
    """[n + 1] where each text begins and ends, from 0."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[n] number of tokens of each text."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.int64]) -> "Encoded":
        """The texts ``rows``, in that order."""
        lengths = self.lengths[rows]
        return Encoded(self.ids[ranges(self.offsets[rows], lengths)], _offsets(lengths))

    def part(self, start: int, end: int) -> "Encoded":
        """The texts ``start`` … ``end - 1``, without a copy of their ids."""
        limits = self.offsets[start : end + 1]
        return Encoded(self.ids[limits[0] : limits[-1]], limits - limits[0])


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """The texts of one or more parts in a row."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Encoded(np.concatenate([part.ids for part in parts]), _offsets(lengths))


class KnownWords:
    """Words with their ids, up to a fixed number.

    Any number of threads may look up and add: what was added never moves, and a word that two
    threads add at the same time has the same ids twice.
    """

    def __init__(self, words: int, size: int, id_type: np.dtype) -> None:
        """At most so many ``words``, with at most ``size`` bytes and ids together."""
        self.starts = np.empty(words, np.int64)
        """[words] where the ids of each word begin in ``ids``."""
        self.lengths = np.empty(words, np.int64)
        # Unused memory is never taken: the system gives pages as they are touched.
        self.ids = np.empty(size, id_type)
        self._numbers: dict[bytes, int] = {}
        self._count = self._used = self._bytes = 0
        self._lock = threading.Lock()

    def find(self, words: list[bytes]) -> NDArray[np.int64]:
        """[words] number of each; -1 where it is not known."""
        return np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int64, len(words))

    def add(
        self, words: list[bytes], ids: NDArray[Any], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Numbers of ``words``, which are known from now on; None if they are too many."""
        with self._lock:
            first, end = self._used, self._used + len(ids)
            numbers = np.arange(self._count, self._count + len(words))
            self._bytes += sum(map(len, words))
            if max(self._bytes, end) > len(self.ids) or len(words) + self._count > len(self.starts):
                return None
            self.ids[first:end] = ids
            self.lengths[numbers] = lengths
            self.starts[numbers] = first + np.cumsum(lengths) - lengths
            self._count, self._used = self._count + len(words), end
            self._numbers.update(zip(words, numbers.tolist(), strict=True))
            return numbers


class Encoder:
    """Encodes texts exactly as ``tokenizer.encode_batch(texts, add_special_tokens=False)``.

    Any number of threads may use one encoder.

    Args:
        tokenizer: any tokenizer; where its configuration does not let words be encoded by
            themselves, it is used as it is.
        words: most words that are kept; they are forgotten when there are more.
        size: most bytes, and most ids, of all words that are kept.
    """

    def __init__(self, tokenizer: Tokenizer, words: int = 1 << 19, size: int = 1 << 24) -> None:
        self._tokenizer = tokenizer
        described = Described.of(tokenizer)
        self.id_type = np.min_scalar_type(max(described.vocabulary.values(), default=0))
        self.by_word = words_are_independent(described)
        self._punctuation = punctuation_is_independent(described)
        self._limits = words, size
        self._known = KnownWords(words, size, self.id_type)

    def encode(self, texts: pa.Array) -> Encoded:
        """The ids (:attr:`id_type`) of a string array without nulls."""
        if texts.null_count:
            raise ValueError("a text is null; every pair must have both sides")
        if not self.by_word:
            ids, lengths = self._encode(texts)
            return Encoded(ids, _offsets(lengths))
        data, limits = utf8(texts.cast(pa.large_string()))
        if limits[0] == limits[-1]:
            return Encoded(np.empty(0, self.id_type), np.zeros(len(limits), np.int64))
        found = distinct_words(data, limits, self._punctuation)
        ids, starts, lengths = self._ids_of(found.words)
        of_words = lengths.take(found.numbers)
        places = ranges(starts.take(found.numbers), of_words)
        return Encoded(ids.take(places), _offsets(of_words)[found.firsts])

    def _ids_of(
        self, words: pa.LargeStringArray
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Ids, and [words] where those of each word begin in them, and how many there are."""
        known = self._known
        texts = words.cast(pa.large_binary()).to_pylist()
        numbers = known.find(texts)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            new = self._encode(words.take(arrow_array(missing)))
            added = known.add([texts[place] for place in missing.tolist()], *new)
            if added is None:
                self._known = KnownWords(*self._limits, self.id_type)
                ids, lengths = self._encode(words)
                return ids, np.cumsum(lengths) - lengths, lengths
            numbers[missing] = added
        return known.ids, known.starts.take(numbers), known.lengths.take(numbers)

    def _encode(self, texts: pa.Array) -> Ids:
        return encode_texts(self._tokenizer, texts.to_pylist(), self.id_type)


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
