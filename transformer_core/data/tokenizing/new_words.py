"""The ids of words that were not met before.

A tokenizer takes its time for each text, so many words make one. Where tokens are of bytes, words
that begin with a space stand in a row, and are told apart by how many bytes each token has. Others
have a token after them that is no part of any word.
"""

import itertools
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from transformer_core.data.arrays import arrow_array, ranges, utf8
from transformer_core.data.tokenizing.described import Described, pre_tokenizer_of
from transformer_core.data.tokenizing.word_boundaries import PIECES, SPACE, SPACES_BEYOND_ASCII

Ids = tuple[NDArray[Any], NDArray[np.int64]]
"""The ids of n texts in a row, and [n] how many each has."""

SEPARATOR = "\uf8ff\ue000\uf8ff"
"""Stands after a word; in no script, so hardly ever in a word. It begins and ends with the same
character, which is nowhere else in it."""
_WORDS_IN_A_TEXT = 64

_MAYBE_SPACE = np.isin(np.arange(256), [*range(SPACE + 1), *SPACES_BEYOND_ASCII])
"""[256] whether a byte may be of white space, or of a control character."""


class NewWords:
    """Encodes words exactly as a tokenizer encodes each by itself, without special tokens.

    Args:
        described: a tokenizer whose words are independent
            (:func:`transformer_core.data.tokenizing.word_boundaries.words_are_independent`).
        id_type: type of the ids.
    """

    def __init__(self, described: Described, id_type: np.dtype) -> None:
        self._described = described
        self._id_type = id_type
        self._for_rows = _without_cut_at_spaces(described)
        self._widths = _bytes_of_tokens(described)

    def encode(self, words: pa.LargeStringArray) -> Ids:
        """The ids of words, none of which is empty."""
        if self._widths is None or not len(words):
            return self._separated(words)
        data, limits = utf8(words)
        begins, lengths = limits[:-1], np.diff(limits)
        text = data[limits[0] : limits[-1]]
        spaces = np.append(0, np.cumsum(_MAYBE_SPACE[text], dtype=np.int32))
        in_word = np.diff(spaces[limits - limits[0]])
        plain = (data[begins] == SPACE) & (in_word == 1) & (lengths > 1)
        found = self._in_a_row(words.filter(arrow_array(plain)), self._widths)
        if found is None:
            return self._separated(words)
        return _merged(plain, found, self._separated(words.filter(arrow_array(~plain))))

    def _in_a_row(self, words: pa.LargeStringArray, widths: NDArray[np.int64]) -> Ids | None:
        """Ids of words with a space as their first character and no other white space, told apart
        by the bytes of each token.

        None if that cannot be, because a token has not as many as it should.
        """
        data, limits = utf8(words)
        offsets = np.append(limits[:-1:_WORDS_IN_A_TEXT], limits[-1])
        texts = pa.LargeStringArray.from_buffers(
            len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data)
        )
        ids, _ = encode_texts(self._for_rows, texts.to_pylist(), self._id_type)
        ends, wanted = np.cumsum(widths[ids]), limits[1:] - limits[0]
        if not np.array_equal(ends[-1:], wanted[-1:]):
            return None
        lasts = np.searchsorted(ends, wanted)
        if np.any(ends[lasts] != wanted):
            return None
        return ids, np.diff(lasts, prepend=-1)

    def _separated(self, column: pa.LargeStringArray) -> Ids:
        """Ids of any words, told apart by a token after each."""
        words = column.to_pylist()
        texts = [
            SEPARATOR.join([*words[start : start + _WORDS_IN_A_TEXT], ""])
            for start in range(0, len(words), _WORDS_IN_A_TEXT)
        ]
        in_words = sum(text.count(SEPARATOR[0]) for text in texts) - 2 * len(words)
        if in_words or self._with_separator is None:
            return encode_texts(self._described.tokenizer, words, self._id_type)
        tokenizer, separator = self._with_separator
        flat, _ = encode_texts(tokenizer, texts, np.dtype(np.int64))
        ends = np.flatnonzero(flat == separator)
        return np.delete(flat, ends).astype(self._id_type), np.diff(ends, prepend=-1) - 1

    @cached_property
    def _with_separator(self) -> tuple[Tokenizer, int] | None:
        """The same tokenizer with one more token, and the id of that; None if it has it already."""
        if SEPARATOR in self._described.vocabulary:
            return None
        # Added tokens of the other are special, which stay text: they are no part of any word.
        other = self._described.without_added_tokens()
        other.add_tokens([AddedToken(SEPARATOR, normalized=False)])
        (separator,) = other.encode(SEPARATOR, add_special_tokens=False).ids
        return other, separator


def encode_texts(tokenizer: Tokenizer, texts: list[str], id_type: np.dtype) -> Ids:
    """The ids of texts as ``tokenizer`` gives them, without special tokens."""
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(itertools.chain.from_iterable(ids), id_type, int(lengths.sum()))
    return flat, lengths


def _merged(chosen: NDArray[np.bool_], some: Ids, others: Ids) -> Ids:
    """The ids of n words, of which some are ``chosen`` ([n]); both parts in order."""
    lengths = np.empty(len(chosen), np.int64)
    lengths[chosen], lengths[~chosen] = some[1], others[1]
    starts = np.cumsum(lengths) - lengths
    ids = np.empty(len(some[0]) + len(others[0]), some[0].dtype)
    for rows, (part, part_lengths) in ((chosen, some), (~chosen, others)):
        ids[ranges(starts[rows], part_lengths)] = part
    return ids, lengths


def _without_cut_at_spaces(described: Described) -> Tokenizer:
    """A tokenizer with the same ids where each space is followed by what is none; faster, if it can
    be: the expression of this project cuts before such a space anyway."""
    stage = described.pre_tokenizer
    if stage["type"] != "Sequence" or len(stage["pretokenizers"]) < 2:
        return described.tokenizer
    first, *others = stage["pretokenizers"]
    alike = {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False}
    if first.get("pattern") != {"String": " "} or others[0] != alike:
        return described.tokenizer
    other = described.without_added_tokens()
    other.pre_tokenizer = pre_tokenizer_of({**stage, "pretokenizers": others})
    return other


def _bytes_of_tokens(described: Described) -> NDArray[np.int64] | None:
    """[vocabulary] how many bytes of a text each token stands for.

    None unless each character of a token is a byte: https://huggingface.co/docs/tokenizers/api/pre-tokenizers
    """
    model, stage = described.settings["model"], described.pre_tokenizer
    last = stage["pretokenizers"][-1] if stage["type"] == "Sequence" else stage
    of_bytes = (
        described.normalizer is None
        and last["type"] == "ByteLevel"
        and model["type"] == "BPE"
        and not (model["continuing_subword_prefix"] or model["end_of_word_suffix"])
        and described.vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    )
    if not of_bytes:
        return None
    tokens, numbers = described.vocabulary.keys(), [*described.vocabulary.values()]
    widths = np.zeros(max(numbers) + 1, np.int64)
    widths[numbers] = [*map(len, tokens)]
    return widths
