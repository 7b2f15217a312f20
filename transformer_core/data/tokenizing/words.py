"""Finds where tokenizers always cut a text, so that words can be encoded separately.

Most tokenizers first cut a text into pre-tokens and encode each by itself. Where a cut is certain
at every space before a visible character, the ids of a text are those of its words in a row. Many
also cut for certain between a letter and punctuation: a word is then the same one before a comma
and at the end of a sentence.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from transformer_core.data.tokenizing.existing import Described

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


_SPACE, _VISIBLE, _LETTER, _PUNCTUATION = 1, 2, 4, 8


def _kinds_of_bytes() -> NDArray[np.uint8]:
    """[256] what each byte may be, as bits. Visible is one that begins a word after a space: not if
    it may be of white space. A letter is one from a to z, of any case."""
    kinds = np.zeros(256, np.uint8)
    kinds[SPACE] = _SPACE
    kinds[SPACE + 1 :] |= _VISIBLE
    kinds[[*SPACES_BEYOND_ASCII]] = 0
    kinds[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]] |= _LETTER
    kinds[[*b".,!?;:"]] |= _PUNCTUATION
    return kinds


_KINDS = _kinds_of_bytes()


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
    kinds = _KINDS.take(text)
    before, after = kinds[:-1], kinds[1:]
    begins = np.zeros(len(text), np.uint8)
    begins[:-1] = before & (after // _VISIBLE) & _SPACE
    # The byte after the end of a text belongs to the next text.
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


Ids = tuple[NDArray[Any], NDArray[np.int64]]
"""The ids of n texts in a row, and [n] how many each has."""


def encode_texts(tokenizer: Tokenizer, texts: list[str], id_type: np.dtype) -> Ids:
    """The ids of texts as ``tokenizer`` gives them, without special tokens."""
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(itertools.chain.from_iterable(ids), id_type, int(lengths.sum()))
    return flat, lengths
