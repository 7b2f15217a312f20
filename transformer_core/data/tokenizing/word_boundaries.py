"""Which tokenizers cut a text where, for certain, so that words can be encoded by themselves.

Most tokenizers first cut a text into pre-tokens and encode each by itself. Where a cut is certain
at every space before a visible character, the ids of a text are those of its words in a row. Many
also cut for certain between a letter and punctuation: a word is then the same one before a comma
and at the end of a sentence.
"""

from typing import Any

from transformer_core.data.tokenizing.described import Described

SPACE = 0x20
"""The byte of a space, which is never part of a longer character of UTF-8."""
SPACES_BEYOND_ASCII = (0xC2, 0xE1, 0xE2, 0xE3)
"""All white space beyond ASCII begins with one of these bytes, and so does much else."""

# Letters (with their combining marks), numbers, other signs, or white space: never two of them in
# one token. The contractions of the usual GPT-2 expression are English only and are left out.
PIECES = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
"""What this project's own tokenizer cuts after it has cut before each space."""

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
