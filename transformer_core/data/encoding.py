"""Text to token ids, each distinct word encoded once.

A byte-level BPE never joins bytes across a pre-token, and the tokenizers of this project cut before
every space first. So the ids of a sentence are the ids of its words in a row, where a word begins
at each space. Words are found on the raw UTF-8 bytes (0x20 is never part of a longer character),
told apart by a hash table of Arrow, and looked up in a cache; only new words reach the tokenizer.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transformer_core.data.arrays import ranges

_SPACE = 0x20


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


_NOTHING = Encoded(np.empty(0, np.uint32), np.zeros(1, np.int64))


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """The texts of one or more parts in a row."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Encoded(np.concatenate([part.ids for part in parts]), _offsets(lengths))


class Encoder:
    """Encodes texts exactly as ``tokenizer.encode_batch(texts, add_special_tokens=False)``.

    Args:
        tokenizer: any tokenizer; one whose configuration does not allow to encode words by
            themselves is used as it is, without the cache.
        cached_words: the cache is emptied before it grows beyond this many words.
    """

    def __init__(self, tokenizer: Tokenizer, cached_words: int = 500_000) -> None:
        self._tokenizer = tokenizer
        self._limit = cached_words
        self.by_word = words_are_independent(tokenizer)
        self._known: dict[str, int] = {}
        self._cache = _NOTHING

    def encode(self, texts: pa.Array) -> Encoded:
        """The ids (uint32) of a string array without nulls."""
        if texts.null_count:
            raise ValueError("a text is null; every pair must have both sides")
        if not self.by_word:
            return self._encode_plainly(texts.to_pylist())
        words, first_words = _words(texts.cast(pa.large_string()))
        distinct = words.dictionary_encode()
        entries = self._entries(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
        starts, lengths = self._cache.offsets[entries], self._cache.lengths[entries]
        ends = _offsets(lengths)
        return Encoded(self._cache.ids[ranges(starts, lengths)], ends[first_words])

    def _entries(self, words: list[str]) -> NDArray[np.int64]:
        """[words] positions of distinct words in the cache, which then holds all of them."""
        new = [word for word in words if word not in self._known]
        if new and len(self._known) + len(new) > self._limit:
            self._known, self._cache = {}, _NOTHING
            new = words
        if new:
            added = self._encode_plainly(new)
            self._known.update(zip(new, itertools.count(len(self._known)), strict=False))
            self._cache = concatenate([self._cache, added])
        return np.fromiter(map(self._known.__getitem__, words), np.int64, len(words))

    def _encode_plainly(self, texts: list[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        return Encoded(flat, _offsets(lengths))


def words_are_independent(tokenizer: Tokenizer) -> bool:
    """Whether a text's ids are those of its words (cut before each space) in a row.

    True only for configurations that are known to have this property.
    """
    settings = json.loads(tokenizer.to_str())
    cut = settings["pre_tokenizer"] or {}
    stages = cut["pretokenizers"] if cut.get("type") == "Sequence" else [cut]
    first, *others = stages
    special = all(token["special"] for token in settings["added_tokens"])
    return (
        first.get("type") == "Split"
        and first["pattern"] == {"String": " "}
        and first["behavior"] == "MergedWithNext"
        and not first["invert"]
        and all(map(_looks_at_one_word, others))
        and settings["normalizer"] is None
        and settings["post_processor"] is None
        and settings["truncation"] is None
        and settings["padding"] is None
        and settings["model"]["type"] == "BPE"
        and not settings["model"]["dropout"]
        # Special tokens are looked for in the whole text, across spaces.
        and (not settings["added_tokens"] or (special and tokenizer.encode_special_tokens))
    )


def _looks_at_one_word(stage: dict[str, Any]) -> bool:
    if stage["type"] == "ByteLevel":
        return not stage["add_prefix_space"]
    return stage["type"] == "Split"


def _words(texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, NDArray[np.int64]]:
    """The words of n texts in a row (a view), and [n + 1] the first word of each text."""
    if not len(texts):
        return texts, np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = texts.buffers()
    limits = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    begin, end = int(limits[0]), int(limits[-1])
    data = np.frombuffer(data_buffer or b"", np.uint8)[begin:end]
    starts_word = np.empty(len(data) + 1, bool)
    np.equal(data, _SPACE, out=starts_word[:-1])
    starts_word[limits - begin] = True
    starts = np.flatnonzero(starts_word) + begin
    words = pa.LargeStringArray.from_buffers(
        len(starts) - 1, pa.py_buffer(starts), data_buffer or pa.py_buffer(b"")
    )
    return words, np.searchsorted(starts, limits)


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
