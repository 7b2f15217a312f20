"""Small tokenizers of every kind that users may have, trained on the sentences of the tests."""

from collections.abc import Callable

from pair_files import ENGLISH, GERMAN
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from transformer_core.data.tokenizing.encoding import KNOWN_PATTERNS

TEXTS = [*ENGLISH, *GERMAN] * 3


def _trained(model, trainer, pre_tokenizer, normalizer=None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _bpe(pre_tokenizer, normalizer=None, **options) -> Tokenizer:
    special = [options["unk_token"]] if "unk_token" in options else []
    alphabet = [] if special else pre_tokenizers.ByteLevel.alphabet()
    size = {"vocab_size": 400, "special_tokens": special, "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(show_progress=False, **size)
    return _trained(models.BPE(**options), trainer, pre_tokenizer, normalizer)


def _pattern(pattern: str) -> Tokenizer:
    stages = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return _bpe(pre_tokenizers.Sequence(stages))


def _unigram(scheme: str) -> Tokenizer:
    special = {"unk_token": "<unk>", "special_tokens": ["<unk>"]}
    trainer = trainers.UnigramTrainer(vocab_size=120, show_progress=False, **special)
    return _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(prepend_scheme=scheme))


UNKNOWN = {"special_tokens": ["[UNK]"], "show_progress": False}


def _word_piece() -> Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=150, **UNKNOWN)
    words = pre_tokenizers.BertPreTokenizer()
    return _trained(models.WordPiece(unk_token="[UNK]"), trainer, words, normalizers.Lowercase())


def _word_level() -> Tokenizer:
    trainer = trainers.WordLevelTrainer(**UNKNOWN)
    return _trained(models.WordLevel(unk_token="[UNK]"), trainer, pre_tokenizers.WhitespaceSplit())


BY_WORD: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2_nfc": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "gpt2_nfd": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFD()),
    **{
        f"pattern_{number}": lambda pattern=pattern: _pattern(pattern)
        for number, pattern in enumerate(sorted(KNOWN_PATTERNS))
    },
    "whitespace": lambda: _bpe(pre_tokenizers.Whitespace(), unk_token="<unk>", fuse_unk=True),
    "whitespace_digits": lambda: _bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
        ),
        unk_token="<unk>",
    ),
    "metaspace_bpe": lambda: _bpe(pre_tokenizers.Metaspace(), unk_token="<unk>", fuse_unk=True),
    "unigram_always": lambda: _unigram("always"),
    "unigram_never": lambda: _unigram("never"),
    "word_piece": _word_piece,
    "word_level": _word_level,
}
"""Tokenizers whose words are independent."""

PLAIN: dict[str, Callable[[], Tokenizer]] = {
    "unigram_first": lambda: _unigram("first"),
    "nfkc": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC()),
    "strip": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip()),
    "prefix_space": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "no_pre_tokenizer": lambda: _bpe(None),
    "unsplit_metaspace": lambda: _bpe(pre_tokenizers.Metaspace(split=False), unk_token="<unk>"),
    "punctuation": lambda: _bpe(pre_tokenizers.Punctuation(), unk_token="<unk>"),
    "other_pattern": lambda: _pattern(r"\w+ ?|\W"),
    "dropout": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), dropout=0.5),
}
"""Tokenizers whose words depend, or may depend, on each other."""
