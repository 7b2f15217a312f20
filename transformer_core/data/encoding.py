"""Text to token ids, each distinct word encoded once.

Most tokenizers first cut a text into pre-tokens and encode each by itself. Where a cut is certain
at every space before a visible character, the ids of a text are those of its words in a row, and
a word that was met before needs no tokenizer. Many also cut for certain between a letter and
punctuation: a word is then the same one before a comma and at the end of a sentence. Words are
found in the raw UTF-8 bytes, where 0x20 is never part of a longer character, by
:mod:`transformer_core.data.words`; new ones alone reach the tokenizer.
"""

import itertools
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from transformer_core.data.arrays import ranges

if TYPE_CHECKING:
    from transformer_core.data.words import Found, WordTable

# Letters (with their combining marks), numbers, other signs, or white space: never two of them in
# one token. The contractions of the usual GPT-2 expression are English only and are left out.
PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
"""What this project's own tokenizer cuts after it has cut before each space."""

# Cut before each space at the latest: https://github.com/openai/tiktoken and the models of
# Llama 3 and Qwen 2. A run of spaces gives its last one to the visible character that follows.
_KNOWN_PATTERNS = frozenset(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"\p{{N}}{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in ("{1,3}", "")
)
_SEPARATOR = "\uf8ff\ue000\uf8ff"
"""Stands between words that are encoded as one text; in no script, so hardly ever in a word."""
_WORDS_IN_A_TEXT = 64


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
        tokenizer: any tokenizer; one whose configuration does not allow to encode words by
            themselves is used as it is, without the table of words.
        by_word: False for little text, which is done before the table is there.
        words: most words that are kept; the table is emptied when it is full.
        size: most bytes of all words that are kept, and most of their ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        by_word: bool = True,
        words: int = 1 << 20,
        size: int = 1 << 24,
    ) -> None:
        self._tokenizer = tokenizer
        self.id_type = np.min_scalar_type(max(tokenizer.get_vocab().values(), default=0))
        self.by_word = by_word and words_are_independent(tokenizer)
        if self.by_word:
            # Compiled code takes its time to import, which the plain path need not wait for.
            from transformer_core.data.words import WordTable

            punctuation = punctuation_is_independent(tokenizer)
            self._new_table = lambda: WordTable(words, size, self.id_type, punctuation)
            self._table = self._new_table()
            self._separated, self._separator = _with_separator(tokenizer)
            self._learning = threading.Lock()

    def encode(self, texts: pa.Array) -> Encoded:
        """The ids (:attr:`id_type`) of a string array without nulls."""
        if texts.null_count:
            raise ValueError("a text is null; every pair must have both sides")
        if not self.by_word or not len(texts):
            return self._encode_plainly(texts.to_pylist())
        data, limits = _utf8(texts.cast(pa.large_string()))
        table = self._table
        found = table.find(data, limits)
        if len(found.missing):
            with self._learning:
                learned = self._learn(table, found, data, limits)
            if learned is None:
                return self._encode_plainly(texts.to_pylist())
            table, found = learned
        return Encoded(*table.gather(found))

    def _learn(
        self, table: "WordTable", found: "Found", data: NDArray[np.uint8], limits: NDArray[np.int64]
    ) -> tuple["WordTable", "Found"] | None:
        """A table with all the words of ``found``, and their entries; None if no table holds them.

        One thread at a time.
        """
        if table is self._table and self._add(table, data, found):
            return table, found
        # It was full, or another thread had found it full: there is a new one, perhaps full too.
        for _ in range(2):
            table = self._table
            found = table.find(data, limits)
            if self._add(table, data, found):
                return table, found
        return None

    def _add(self, table: "WordTable", data: NDArray[np.uint8], found: "Found") -> bool:
        """Whether the table took the missing words; if not, a new one takes its place."""
        learned = False
        try:
            words = table.add(data, found)
            learned = words is not None and table.learn(*self._encode_words(words))
        finally:
            if not learned:
                self._table = self._new_table()
        return learned

    def _encode_words(self, words: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of words in a row, and [words] how many each has.

        Many words make one text, because the tokenizer takes its time for each.
        """
        groups = [
            words[start : start + _WORDS_IN_A_TEXT]
            for start in range(0, len(words), _WORDS_IN_A_TEXT)
        ]
        texts = [_SEPARATOR.join(group) for group in groups]
        if any(text.count(_SEPARATOR) != len(g) - 1 for text, g in zip(texts, groups, strict=True)):
            encoded = self._encode_plainly(words)
            return encoded.ids, encoded.lengths
        encodings = self._separated.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array([*encoding.ids, self._separator]) for encoding in encodings]
        flat = np.concatenate(ids) if ids else np.empty(0, np.int64)
        ends = np.flatnonzero(flat == self._separator)
        lengths = np.diff(ends, prepend=-1) - 1
        return np.delete(flat, ends).astype(self.id_type), lengths

    def _encode_plainly(self, texts: list[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(itertools.chain.from_iterable(ids), self.id_type, int(lengths.sum()))
        return Encoded(flat, _offsets(lengths))


def words_are_independent(tokenizer: Tokenizer) -> bool:
    """Whether a text's ids are those of its words in a row, wherever it is cut before a space that
    a visible character follows.

    True only for configurations that are known to have this property: a normaliser that does not
    look across a space, a first stage that always cuts there and needs nothing from the other side,
    a model that sees one pre-token at a time, and nothing that looks at the whole text.
    """
    settings = json.loads(tokenizer.to_str())
    model = settings["model"]
    normalizer = settings["normalizer"] or {"type": None}
    special = all(token["special"] for token in settings["added_tokens"])
    return (
        normalizer["type"] in (None, "NFC", "NFD", "Lowercase")
        and _cuts_before_spaces(settings["pre_tokenizer"] or {"type": None})
        and model["type"] in ("BPE", "Unigram", "WordPiece", "WordLevel")
        and not model.get("dropout")
        and (settings["post_processor"] or {"type": None})["type"] in (None, "ByteLevel")
        and settings["truncation"] is None
        and settings["padding"] is None
        # Added tokens are looked for in the whole text, across spaces.
        and (not settings["added_tokens"] or (special and tokenizer.encode_special_tokens))
        and _SEPARATOR not in tokenizer.get_vocab()
    )


def punctuation_is_independent(tokenizer: Tokenizer) -> bool:
    """Whether the same holds, in a text of which :func:`words_are_independent` holds, where it is
    cut between an ASCII letter and one of ``. , ! ? ; :``."""
    settings = json.loads(tokenizer.to_str())
    normalizer = settings["normalizer"] or {"type": None}
    # How a letter is put in small letters may depend on what stands before a full stop.
    return normalizer["type"] in (None, "NFC", "NFD") and _cuts_before_punctuation(
        settings["pre_tokenizer"]
    )


def _cuts_before_punctuation(stage: dict[str, Any]) -> bool:
    """Like :func:`_cuts_before_spaces`, between a letter and punctuation."""
    match stage["type"]:
        case "Sequence":
            first, *others = stage["pretokenizers"]
            at_spaces_only = first["type"] == "WhitespaceSplit" or first.get("pattern") == {
                "String": " "
            }
            return _cuts_before_punctuation(others[0] if at_spaces_only and others else first)
        case "Split":
            return (
                stage["pattern"].get("Regex") in {PIECES, *_KNOWN_PATTERNS}
                and stage["behavior"] == "Isolated"
                and not stage["invert"]
            )
        case "ByteLevel":
            return stage["use_regex"]
    return stage["type"] in ("Whitespace", "BertPreTokenizer")


def _cuts_before_spaces(stage: dict[str, Any]) -> bool:
    """Whether the pre-tokenizer cuts before every space that a visible character follows, with the
    same result for what is left and right of it as for each alone."""
    match stage["type"]:
        case "Sequence":
            first, *others = stage["pretokenizers"] or [{"type": None}]
            return _cuts_before_spaces(first) and all(map(_looks_at_one_piece, others))
        case "Split":
            if stage["pattern"] == {"String": " "}:
                return stage["behavior"] == "MergedWithNext" and not stage["invert"]
            pattern = stage["pattern"].get("Regex")
            return (
                pattern in _KNOWN_PATTERNS
                and stage["behavior"] == "Isolated"
                and not stage["invert"]
            )
        case "ByteLevel":
            return stage["use_regex"] and not stage["add_prefix_space"]
        case "Metaspace":
            return stage["split"] and stage["prepend_scheme"] in ("always", "never")
        case "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer":
            return True
    return False


def _looks_at_one_piece(stage: dict[str, Any]) -> bool:
    """Whether a later stage treats each piece by itself, wherever it stands in the text."""
    if stage["type"] == "ByteLevel":
        return not stage["add_prefix_space"]
    return stage["type"] in ("Split", "Digits", "Punctuation")


def _with_separator(tokenizer: Tokenizer) -> tuple[Tokenizer, int]:
    """The same tokenizer with one more token, and the id of that."""
    other = Tokenizer.from_str(tokenizer.to_str())
    other.encode_special_tokens = tokenizer.encode_special_tokens
    other.add_tokens([AddedToken(_SEPARATOR, normalized=False)])
    (separator,) = other.encode(_SEPARATOR, add_special_tokens=False).ids
    return other, separator


def _utf8(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of n texts, and [n + 1] where each begins and ends; both as views."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    # Code is compiled for arrays that can be written and for others: ask for one kind only.
    for array in (data, offsets):
        array.flags.writeable = False
    return data, offsets


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
