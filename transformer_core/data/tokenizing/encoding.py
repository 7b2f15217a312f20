"""Encodes text as token ids, each distinct word only once.

Most tokenizers first split a text into pre-tokens and encode each on its own. If a tokenizer always
splits at a space before a visible character, the ids of a text are those of its words in order. Many
also always split between a letter and punctuation, so that a word is the same before a comma and
elsewhere. We find words in the UTF-8 bytes of the texts, and give only new ones to the tokenizer.
"""

import json
import threading
from collections.abc import Collection, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transformer_core.common.tables import arrow_array
from transformer_core.data.arrays import Integers, ranges, utf8

SPACE = 0x20  # the byte of a space, which never occurs within a longer UTF-8 character
SPACES_BEYOND_ASCII = (0xC2, 0xE1, 0xE2, 0xE3)
"""First bytes of all white space beyond ASCII, and of many other characters."""

# Letters (with their combining marks), numbers, other signs, or white space: a token never mixes
# them. We omit the contractions of the usual GPT-2 expression, which only suit English.
PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
"""The second split of this project's own tokenizer, after the one before each space."""

# Patterns of https://github.com/openai/tiktoken, Llama 3 and Qwen 2. They always split before a
# space; the last space of several belongs to the visible character that follows.
KNOWN_PATTERNS = frozenset(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"\p{{N}}{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in ("{1,3}", "")
)


def _stages(tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """The contents of tokenizer.json, its pre-tokenizer, and the type of its normaliser."""
    settings = json.loads(tokenizer.to_str())
    nothing = {"type": None}
    normalizer = (settings["normalizer"] or nothing)["type"]
    return settings, settings["pre_tokenizer"] or nothing, normalizer


def words_are_independent(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words in order, if we split it before any space
    that a visible character follows.

    True only for configurations known to have this property: the normaliser does not look across a
    space, the first stage always splits there and ignores the other side, the model sees one
    pre-token at a time, and nothing looks at the whole text.
    """
    settings, pre_tokenizer, normalizer = _stages(tokenizer)
    model = settings["model"]
    special = all(token["special"] for token in settings["added_tokens"])
    stays_text = tokenizer.encode_special_tokens
    return (
        normalizer in (None, "NFC", "NFD", "Lowercase")
        and _cuts_before_spaces(pre_tokenizer)
        and model["type"] in ("BPE", "Unigram", "WordPiece", "WordLevel")
        and not model.get("dropout")
        and (settings["post_processor"] or {"type": None})["type"] in (None, "ByteLevel")
        and settings["truncation"] is None
        and settings["padding"] is None
        # The library searches the whole text for added tokens, across spaces.
        and (not settings["added_tokens"] or (special and stays_text))
    )


def punctuation_is_independent(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer with :func:`words_are_independent` also allows splits between an ASCII
    letter and one of ``. , ! ? ; :``."""
    # Without Lowercase, which may treat a letter differently before a full stop.
    _, pre_tokenizer, normalizer = _stages(tokenizer)
    return normalizer in (None, "NFC", "NFD") and _cuts_before_punctuation(pre_tokenizer)


def _isolated(stage: dict[str, Any], patterns: Collection[str]) -> bool:
    known = stage["pattern"].get("Regex") in patterns
    return known and stage["behavior"] == "Isolated" and not stage["invert"]


def _cuts_before_punctuation(stage: dict[str, Any]) -> bool:
    """:func:`_cuts_before_spaces` for splits between a letter and punctuation."""
    match stage["type"]:
        case "Sequence":
            first, *others = stage["pretokenizers"]
            at_spaces = first["type"] == "WhitespaceSplit"
            at_spaces |= first.get("pattern") == {"String": " "}
            return _cuts_before_punctuation(others[0] if at_spaces and others else first)
        case "Split":
            return _isolated(stage, {PIECES, *KNOWN_PATTERNS})
        case "ByteLevel":
            return stage["use_regex"]
    return stage["type"] in ("Whitespace", "BertPreTokenizer")


def _cuts_before_spaces(stage: dict[str, Any]) -> bool:
    """Whether the pre-tokenizer splits before every space that a visible character follows, and
    treats the text on each side as if it stood alone."""
    match stage["type"]:
        case "Sequence":
            first, *others = stage["pretokenizers"] or [{"type": None}]
            return _cuts_before_spaces(first) and all(map(_looks_at_one_piece, others))
        case "Split":
            if stage["pattern"] == {"String": " "}:
                return stage["behavior"] == "MergedWithNext" and not stage["invert"]
            return _isolated(stage, KNOWN_PATTERNS)
        case "ByteLevel":
            return stage["use_regex"] and not stage["add_prefix_space"]
        case "Metaspace":
            return stage["split"] and stage["prepend_scheme"] in ("always", "never")
    return stage["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")


def _looks_at_one_piece(stage: dict[str, Any]) -> bool:
    """Whether a later stage treats each piece on its own, wherever it occurs in the text."""
    if stage["type"] == "ByteLevel":
        return not stage["add_prefix_space"]
    return stage["type"] in ("Split", "Digits", "Punctuation")


_SPACE, _VISIBLE, _LETTER, _PUNCTUATION = 1, 2, 4, 8


def _kinds_of_bytes() -> NDArray[np.uint8]:
    """[256] the possible kinds of each byte, as bits. A visible byte begins a word after a space, so
    it cannot be part of white space. Letters are a to z in either case."""
    kinds = np.zeros(256, np.uint8)
    kinds[SPACE] = _SPACE
    kinds[SPACE + 1 :] |= _VISIBLE
    kinds[[*SPACES_BEYOND_ASCII]] = 0
    kinds[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]] |= _LETTER
    kinds[[*b".,!?;:"]] |= _PUNCTUATION
    return kinds


_KINDS = _kinds_of_bytes()


class DistinctWords(NamedTuple):
    """The words of n texts in order, as indices of the distinct ones."""

    words: pa.LargeStringArray  # every distinct word once
    numbers: NDArray[np.int32]  # [words of the texts] index of each in ``words``
    firsts: Integers  # [n + 1] index of the first word of each text in ``numbers``


def distinct_words(data: NDArray[np.uint8], limits: Integers, punctuation: bool) -> DistinctWords:
    """Finds the words of texts. Text i is ``data[limits[i]:limits[i + 1]]``; not all may be empty.

    A word ends before each space that a visible character follows and, with ``punctuation``,
    between a letter and one of ``. , ! ? ; :``.
    """
    text, limits = data[limits[0] : limits[-1]], limits - limits[0]
    filled = limits[:-1] < limits[1:]
    kinds = _KINDS.take(text)
    before, after = kinds[:-1], kinds[1:]
    begins = np.zeros(len(text), np.uint8)
    begins[:-1] = before & (after // _VISIBLE) & _SPACE
    # Undo a word at the end of a text, where the byte after it belongs to the next text.
    begins[limits[1:][filled] - 1] = 0
    if punctuation:
        begins[1:] |= before & (after // 2) & _LETTER
    begins[limits[:-1][filled]] = 1
    offsets = np.append(np.flatnonzero(begins != 0), len(text))
    column = pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))
    )
    found = column.dictionary_encode()
    numbers = np.frombuffer(found.indices.buffers()[1], np.int32, len(column))
    return DistinctWords(found.dictionary, numbers, np.searchsorted(offsets, limits))


class Encoded(NamedTuple):
    """Token ids of n texts: text i has ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[Any]  # [tokens] ids of all texts in order, in an unsigned integer type
    offsets: Integers  # [n + 1] limits of the texts in ``ids``, from 0

    @property
    def lengths(self) -> Integers:
        """[n] number of tokens of each text."""
        return np.diff(self.offsets)

    def take(self, rows: Integers) -> "Encoded":
        lengths = self.lengths[rows]
        return Encoded(self.ids[ranges(self.offsets[rows], lengths)], _offsets(lengths))

    def part(self, start: int, end: int) -> "Encoded":
        """The texts ``start`` … ``end - 1``, without copying their ids."""
        limits = self.offsets[start : end + 1]
        return Encoded(self.ids[limits[0] : limits[-1]], limits - limits[0])


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """Joins the texts of one or more parts."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Encoded(np.concatenate([part.ids for part in parts]), _offsets(lengths))


class KnownWords:
    """A cache of a limited number of words with their ids.

    Safe for any number of threads: entries never move, and if two threads add the same word at
    once, the cache stores its ids twice.
    """

    def __init__(self, words: int, size: int, id_type: np.dtype) -> None:
        """Holds up to ``words`` words, and up to ``size`` bytes and as many ids in all."""
        self.starts = np.empty(words, np.int64)
        """[words] index in ``ids`` of the first id of each word."""
        self.lengths = np.empty(words, np.int64)
        # The system allocates a page when it is first touched, so unused memory costs nothing.
        self.ids = np.empty(size, id_type)
        self._numbers: dict[bytes, int] = {}
        self._count = self._used = self._bytes = 0
        self._lock = threading.Lock()

    def find(self, words: list[bytes]) -> Integers:
        """[words] number of each word; -1 for unknown ones."""
        return np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int64, len(words))

    def add(self, words: list[bytes], ids: NDArray[Any], lengths: Integers) -> Integers | None:
        """Adds ``words`` and returns their numbers, or None if they do not fit."""
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

    Any number of threads may share an encoder. A tokenizer that cannot encode word by word encodes
    whole texts. The cache holds up to ``words`` words, and up to ``size`` bytes and as many ids in
    all; when it is full, it starts again from empty.
    """

    def __init__(self, tokenizer: Tokenizer, words: int = 1 << 19, size: int = 1 << 24) -> None:
        self._tokenizer = tokenizer
        self.id_type = np.min_scalar_type(max(tokenizer.get_vocab().values(), default=0))
        self.by_word = words_are_independent(tokenizer)
        self._punctuation = punctuation_is_independent(tokenizer)
        self._limits = words, size
        self._known = KnownWords(words, size, self.id_type)

    def encode(self, texts: pa.Array) -> Encoded:
        """The ids (:attr:`id_type`) of a string array without nulls."""
        if texts.null_count:
            raise ValueError("a text is null, but every pair must have both sides")
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

    def _ids_of(self, words: pa.LargeStringArray) -> tuple[NDArray[Any], Integers, Integers]:
        """Ids, and for each word [words] the index of its first id and its number of ids."""
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

    def _encode(self, texts: pa.Array) -> tuple[NDArray[Any], Integers]:
        """The tokenizer's ids of n texts in order, and [n] the number of ids of each."""
        found = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        ids = [encoding.ids for encoding in found]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), self.id_type, int(lengths.sum())), lengths


def _offsets(lengths: NDArray[np.integer]) -> Integers:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
