"""Finds where tokenizers always cut a text, so that words can be encoded separately.

Most tokenizers first cut a text into pre-tokens and encode each by itself. Where a cut is certain
at every space before a visible character, the ids of a text are those of its words in a row. Many
also cut for certain between a letter and punctuation: a word is then the same one before a comma
and at the end of a sentence.
"""

import itertools
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from transformer_core.data.arrays import arrow_array, ranges, utf8
from transformer_core.data.tokenizing.existing import Described, pre_tokenizer_of

SPACE = 0x20
"""The byte of a space, which is never part of a longer character of UTF-8."""
SPACES_BEYOND_ASCII = (0xC2, 0xE1, 0xE2, 0xE3)
"""All white space beyond ASCII begins with one of these bytes, and so does much else."""

# Letters (with their combining marks), numbers, other signs, or white space: never two of them in
# one token. The contractions of the usual GPT-2 expression are English only and are left out.
PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
"""The pieces into which this project's own tokenizer cuts text after it has cut before each
space."""

# Cut before each space at the latest: https://github.com/openai/tiktoken and the models of
# Llama 3 and Qwen 2. A run of spaces gives its last one to the visible character that follows.
KNOWN_PATTERNS = frozenset(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"\p{{N}}{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in ("{1,3}", "")
)


def words_are_independent(described: Described) -> bool:
    """Whether a text's ids are those of its words in a row, wherever it is cut before a space that
    a visible character follows.

    True only for configurations that are known to have this property: a normaliser that does not
    look across a space, a first stage that always cuts there and needs nothing from the other side,
    a model that sees one pre-token at a time, and nothing that looks at the whole text.
    """
    settings, model = described.settings, described.settings["model"]
    special = all(token["special"] for token in settings["added_tokens"])
    stays_text = described.tokenizer.encode_special_tokens
    return (
        described.normalizer in (None, "NFC", "NFD", "Lowercase")
        and _cuts_before_spaces(described.pre_tokenizer)
        and model["type"] in ("BPE", "Unigram", "WordPiece", "WordLevel")
        and not model.get("dropout")
        and (settings["post_processor"] or {"type": None})["type"] in (None, "ByteLevel")
        and settings["truncation"] is None
        and settings["padding"] is None
        # Added tokens are looked for in the whole text, across spaces.
        and (not settings["added_tokens"] or (special and stays_text))
    )


def punctuation_is_independent(described: Described) -> bool:
    """Whether the same holds, in a text of which :func:`words_are_independent` holds, where it is
    cut between an ASCII letter and one of ``. , ! ? ; :``."""
    # How a letter is put in small letters may depend on what stands before a full stop.
    return described.normalizer in (None, "NFC", "NFD") and _cuts_before_punctuation(
        described.pre_tokenizer
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
                stage["pattern"].get("Regex") in {PIECES, *KNOWN_PATTERNS}
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
                pattern in KNOWN_PATTERNS
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


_BYTES = np.arange(256)
_VISIBLE = (_BYTES > SPACE) & ~np.isin(_BYTES, SPACES_BEYOND_ASCII)
"""[256] whether a space before this byte begins a word: not if the byte may be white space."""
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
    # The byte after the end of a text belongs to the next text.
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


Ids = tuple[NDArray[Any], NDArray[np.int64]]
"""The ids of n texts in a row, and [n] how many each has."""

SEPARATOR = "\uf8ff\ue000\uf8ff"
"""Stands after a word; in no script, so hardly ever in a word. It begins and ends with the same
character, which occurs nowhere else in it."""
_WORDS_IN_A_TEXT = 64

_MAYBE_SPACE = np.isin(np.arange(256), [*range(SPACE + 1), *SPACES_BEYOND_ASCII])
"""[256] whether a byte may be of white space, or of a control character."""


class NewWords:
    """Encodes words exactly as a tokenizer encodes each by itself, without special tokens.

    Args:
        described: a tokenizer whose words are independent
            (:func:`transformer_core.data.tokenizing.words.words_are_independent`).
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

        None if that is impossible, because a token has another number of bytes than it should.
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
        # Added tokens of the other are special and stay text: they are no part of any word.
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
    """A tokenizer with the same ids where each space is followed by a character that is none; faster
    where possible: the expression of this project cuts before such a space anyway."""
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
