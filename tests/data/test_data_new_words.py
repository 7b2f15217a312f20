"""Words that are new to a table, many of them in one text for the tokenizer."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pair_files import steady, write_tokenizer
from tokenizers import AddedToken, Tokenizer
from tokenizers_of_all_kinds import BY_WORD

from benchmarks._adversarial import PIECES
from transformer_core.data.tokenizing.existing import Described
from transformer_core.data.tokenizing.job import load_tokenizer
from transformer_core.data.tokenizing.words import SEPARATOR, NewWords, encode_texts

SHORT = [piece for piece in PIECES if 0 < len(piece) < 1_000]
letters = st.text("ab zß\u00a0\u3000\u0301,.5\t\n", min_size=1, max_size=4)
words = st.one_of(st.sampled_from(SHORT), letters, letters.map(" {}".format), st.text(min_size=1))
few = settings(steady, max_examples=30)
TYPE = np.dtype(np.uint32)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@cache
def tokenizer(kind: str) -> Tokenizer:
    return BY_WORD[kind]()


def column(values: list[str]) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def lists(new_words: NewWords, values: list[str]) -> list[list[int]]:
    """The ids of each word, where they are encoded together."""
    ids, lengths = new_words.encode(column(values))
    assert ids.dtype == TYPE
    assert len(lengths) == len(values)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def expected(tokenizer: Tokenizer, values: list[str]) -> list[list[int]]:
    return [tokenizer.encode(value, add_special_tokens=False).ids for value in values]


def in_a_row(tokenizer: Tokenizer) -> bool:
    return NewWords(Described.of(tokenizer), TYPE)._widths is not None


def separated(tokenizer: Tokenizer) -> NewWords:
    """A tokenizer whose tokens do not tell how many bytes they have."""
    new_words = NewWords(Described.of(tokenizer), TYPE)
    new_words._widths = None
    return new_words


@pytest.mark.parametrize("kind", ["own", *BY_WORD])
@few
@given(values=st.lists(words, min_size=1, max_size=9))
@example([" a", " ", "b", "  c", " \u00a0", ".", " d\t", "\u3000e", " f" * 30] * 8)
def test_words_are_encoded_as_each_by_itself(bpe: Tokenizer, kind: str, values: list[str]) -> None:
    used = bpe if kind == "own" else tokenizer(kind)
    wanted = expected(used, values)
    assert lists(NewWords(Described.of(used), TYPE), values) == wanted
    assert lists(separated(used), values) == wanted


def test_words_stand_in_a_row_where_tokens_are_bytes(bpe: Tokenizer) -> None:
    assert in_a_row(bpe)
    patterns = {kind for kind in BY_WORD if kind.startswith("pattern_")}
    assert {kind for kind in BY_WORD if in_a_row(tokenizer(kind))} == {"gpt2", *patterns}


class Spy:
    """A tokenizer that keeps the texts it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.texts: list[str] = []

    def encode_batch_fast(self, texts: list[str], **options: bool) -> object:
        self.texts += texts
        return self.tokenizer.encode_batch_fast(texts, **options)


def test_the_cut_at_spaces_is_left_out_where_it_is_made_anyway(bpe: Tokenizer) -> None:
    assert "MergedWithNext" in bpe.to_str()
    assert "MergedWithNext" not in NewWords(Described.of(bpe), TYPE)._for_rows.to_str()
    for kind in BY_WORD:
        assert NewWords(Described.of(tokenizer(kind)), TYPE)._for_rows is tokenizer(kind)
    other = Tokenizer.from_str(bpe.to_str().replace('"Isolated"', '"MergedWithPrevious"'))
    assert NewWords(Described.of(other), TYPE)._for_rows is other


def test_many_words_make_one_text(bpe: Tokenizer) -> None:
    values = ["One", *(f" word{number}" for number in range(100)), ",", " and", " \u00a0", " more"]
    new_words = NewWords(Described.of(bpe), TYPE)
    assert new_words._with_separator is not None
    others, separator = new_words._with_separator
    rows, apart = Spy(new_words._for_rows), Spy(others)
    new_words._for_rows = rows  # type: ignore[assignment]
    new_words._with_separator = apart, separator  # type: ignore[assignment]
    assert lists(new_words, values) == expected(bpe, values)
    assert [len(text.split()) for text in rows.texts] == [64, 38]
    assert "".join(rows.texts) == "".join([*values[1:101], " and", " more"])
    assert apart.texts == ["".join(word + SEPARATOR for word in ("One", ",", " \u00a0"))]


def test_tokens_of_other_widths_are_noticed(bpe: Tokenizer) -> None:
    values = column([" some", " words", " in", " a", " row"])
    for change in (1, -1):
        new_words = NewWords(Described.of(bpe), TYPE)
        assert new_words._widths is not None
        new_words._widths = new_words._widths + change
        assert new_words._in_a_row(values, new_words._widths) is None
        assert lists(new_words, values.to_pylist()) == expected(bpe, values.to_pylist())


def test_no_words(bpe: Tokenizer) -> None:
    for new_words in (NewWords(Described.of(bpe), TYPE), separated(bpe)):
        ids, lengths = new_words.encode(column([]))
        assert (len(ids), len(lengths)) == (0, 0)


@pytest.mark.parametrize("kind", ["gpt2", "metaspace_bpe", "word_level"])
@pytest.mark.parametrize(
    "values",
    [
        [f"a{SEPARATOR}b", f" {SEPARATOR}", SEPARATOR * 3],
        [SEPARATOR[:2], " b"],
        ["a", SEPARATOR[1:], " b"],
        ["a", SEPARATOR[1], SEPARATOR[1], " b"],
        [SEPARATOR[0], SEPARATOR[0]],
    ],
)
def test_words_that_hold_the_separator(kind: str, values: list[str]) -> None:
    used = tokenizer(kind)
    assert lists(separated(used), values) == expected(used, values)


def test_a_vocabulary_with_the_separator(bpe: Tokenizer) -> None:
    other = Tokenizer.from_str(bpe.to_str())
    other.encode_special_tokens = True
    other.add_special_tokens([AddedToken(SEPARATOR)])
    values = ["a", f" b{SEPARATOR}", SEPARATOR, " c"]
    assert lists(separated(other), values) == expected(other, values)


def test_texts(bpe: Tokenizer) -> None:
    values = ["Two words", "", "and more"]
    ids, lengths = encode_texts(bpe, values, TYPE)
    wanted = expected(bpe, values)
    assert lengths.tolist() == [len(part) for part in wanted]
    assert ids.tolist() == [number for part in wanted for number in part]
