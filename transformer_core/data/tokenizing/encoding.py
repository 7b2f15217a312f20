"""Text to token ids, each distinct word encoded once.

Where the words of a text are independent
(:mod:`transformer_core.data.tokenizing.words`), one that was met
before needs no tokenizer. Words are found in the raw UTF-8 bytes by
:mod:`transformer_core.data.tokenizing.word_table`, or by
:mod:`transformer_core.data.tokenizing.words`; new ones alone reach the tokenizer
(:mod:`transformer_core.data.tokenizing.words`).
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transformer_core.data.arrays import ranges, utf8
from transformer_core.data.tokenizing.existing import Described
from transformer_core.data.tokenizing.words import (
    NewWords,
    distinct_words,
    encode_texts,
    punctuation_is_independent,
    words_are_independent,
)

if TYPE_CHECKING:
    from transformer_core.data.tokenizing.word_table import Found, WordTable


_TRIES = 3
"""Tables to try before a text is encoded without one: the first may be full already, and others may
fill the second."""


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


class Encoder:
    """Encodes texts exactly as ``tokenizer.encode_batch(texts, add_special_tokens=False)``.

    Any number of threads may use one encoder.

    Args:
        tokenizer: any tokenizer; where its configuration does not let words be encoded by
            themselves, it is used as it is, without the table of words.
        by_word: False for little text, where finding the words takes longer than encoding them.
        keep: whether words are kept from one call of :meth:`encode` to the next, in a table of
            compiled code, which takes its time to import.
        words: most words that are kept; the table is emptied when it is full.
        size: most bytes of all words that are kept, and most of their ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        by_word: bool = True,
        words: int = 1 << 20,
        size: int = 1 << 24,
        keep: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        described = Described.of(tokenizer)
        self.id_type = np.min_scalar_type(max(described.vocabulary.values(), default=0))
        self.by_word = by_word and words_are_independent(described)
        self._keep = keep
        if self.by_word:
            self._punctuation = punctuation = punctuation_is_independent(described)
            self._new_words = NewWords(described, self.id_type)
        if self.by_word and keep:
            from transformer_core.data.tokenizing.word_table import WordTable

            self._new_table = lambda: WordTable(words, size, self.id_type, punctuation)
            self._table = self._new_table()
            self._changed = threading.Condition()

    def encode(self, texts: pa.Array) -> Encoded:
        """The ids (:attr:`id_type`) of a string array without nulls."""
        if texts.null_count:
            raise ValueError("a text is null; every pair must have both sides")
        if not self.by_word or not len(texts):
            return self._encode_plainly(texts.to_pylist())
        data, limits = utf8(texts.cast(pa.large_string()))
        if not self._keep:
            return self._encode_distinct(data, limits)
        for _ in range(_TRIES):
            table = self._table
            found = table.find(data, limits)
            if not len(found.missing) or self._learn(table, data, found):
                return Encoded(*table.gather(found))
        return self._encode_plainly(texts.to_pylist())

    def _encode_distinct(self, data: NDArray[np.uint8], limits: NDArray[np.int64]) -> Encoded:
        """The ids of texts without the table: text i is ``data[limits[i]:limits[i + 1]]``."""
        if limits[0] == limits[-1]:
            return Encoded(np.empty(0, self.id_type), np.zeros(len(limits), np.int64))
        found = distinct_words(data, limits, self._punctuation)
        ids, lengths = self._new_words.encode(found.words)
        starts = np.cumsum(lengths) - lengths
        of_words = lengths[found.numbers]
        places = ranges(starts[found.numbers], of_words)
        return Encoded(ids[places], _offsets(of_words)[found.firsts])

    def _learn(self, table: "WordTable", data: NDArray[np.uint8], found: "Found") -> bool:
        """Enter all words of ``found`` into the table, with their ids.

        Threads encode their words at the same time, and enter the ids in the order in which they
        added the words. False if the table is full: there is then a new one, here and for all that
        still wait.
        """
        with self._changed:
            if table is not self._table:
                return False
            first = table.added
            words = table.add(data, found)
            if words is None:
                self._give_up(table)
                return False
        try:
            new = self._new_words.encode(words)
        except BaseException:
            with self._changed:
                self._give_up(table)
            raise
        with self._changed:
            self._changed.wait_for(lambda: table.count >= first or table is not self._table)
            learned = table is self._table and table.learn(*new)
            if not learned:
                self._give_up(table)
            self._changed.notify_all()
        return learned

    def _give_up(self, table: "WordTable") -> None:
        """Replace a table that is full, or lacks ids, by a new one."""
        if table is self._table:
            self._table = self._new_table()
        self._changed.notify_all()

    def _encode_plainly(self, texts: list[str]) -> Encoded:
        ids, lengths = encode_texts(self._tokenizer, texts, self.id_type)
        return Encoded(ids, _offsets(lengths))


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
