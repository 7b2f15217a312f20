from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pair_files import steady
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors
from tokenizers_of_all_kinds import BY_WORD, PLAIN

from benchmarks._adversarial import PIECES, adversarial_lines
from transformer_core.data.tokenizing.encoding import (
    Encoder,
    punctuation_is_independent,
    words_are_independent,
)

# Text on which word boundaries could fail, mixed with any other text.
SHORT = [piece for piece in PIECES if len(piece) < 1_000]
texts = st.lists(st.one_of(st.sampled_from(SHORT), st.text(max_size=4)), max_size=9).map("".join)
# Letters of all sorts, and signs between them, before which a word may end.
letters = st.sampled_from([*"azAZéßσΣ5_'\u0301", "s", "ll", "İ"])
signs = st.sampled_from(
    [*".,!?;:", "...", "?!", "'", "-", " ", "  ", "\u00a0", "\n", "\u0301", "\u0338"]
)
punctuated = st.lists(st.one_of(letters, signs), max_size=12).map("".join)
few = settings(steady, max_examples=20)


@pytest.fixture(scope="module")
def shared(bpe):
    return Encoder(bpe)


@cache
def other(kind):
    return (BY_WORD | PLAIN)[kind]()


@cache
def encoder(kind):
    return Encoder(other(kind))


def column(values):
    return pa.array(values, pa.large_string())


def lists(encoded):
    return [part.tolist() for part in np.split(encoded.ids, encoded.offsets[1:-1])]


def expected(bpe, values):
    return [encoding.ids for encoding in bpe.encode_batch(values, add_special_tokens=False)]


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("own", *BY_WORD)),
        *(kind for kind in PLAIN if kind != "dropout"),
    ],
)
@few
@given(values=st.lists(texts | punctuated, min_size=1, max_size=8))
@example(["x\u3000 \u3000b", "a  b", "a   b \t c", "x\n b", "Ab \u00a8c"])
def test_equals_the_tokenizer_id_for_id(bpe, shared, kind, values):
    reference, tested = (bpe, shared) if kind == "own" else (other(kind), encoder(kind))
    assert tested.by_word == (kind not in PLAIN)
    encoded = tested.encode(column(values))
    assert lists(encoded) == expected(reference, values)
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)


def test_punctuation_is_split_where_that_is_safe(bpe):
    assert punctuation_is_independent(bpe)
    found = {kind for kind in BY_WORD if punctuation_is_independent(other(kind))}
    patterns = {kind for kind in BY_WORD if kind.startswith("pattern_")}
    assert found == {"gpt2", "gpt2_nfc", "gpt2_nfd", "whitespace", *patterns}
    assert not encoder("dropout").by_word


@pytest.mark.slow
@few
@given(
    values=st.lists(texts, min_size=1, max_size=8), words=st.integers(1, 6), size=st.integers(1, 99)
)
def test_a_small_cache_gives_the_same_ids(bpe, values, words, size):
    encoder = Encoder(bpe, words=words, size=size)
    for part in (values, values[::-1], values[:1]):
        assert lists(encoder.encode(column(part))) == expected(bpe, part)


def test_known_words_are_bounded_and_used(bpe, monkeypatch):
    encoder = Encoder(bpe, words=10)
    encoded = []
    encode = encoder._encode

    def counting(words):
        encoded.extend(words.to_pylist())
        return encode(words)

    monkeypatch.setattr(encoder, "_encode", counting)
    encoder.encode(column(["a b b b", "a c"]))
    assert sorted(encoded) == [" b", " c", "a"]
    encoder.encode(column(["a c b d"]))
    assert encoded[3:] == [" d"]
    encoder.encode(column(["a b, c d.", "a b! c, d", "5."]))
    assert sorted(encoded[4:]) == ["!", ",", ".", "5."]
    for number in range(50):
        encoder.encode(column([f"a {number}"]))
        assert len(encoder._known._numbers) <= 10
    assert encoded.count("a") > 1


@pytest.mark.slow
def test_threads_share_known_words(bpe):
    lines = adversarial_lines(800, seed=2)
    pieces = [lines[start : start + 40] for start in range(0, len(lines), 40)]
    wanted = [expected(bpe, piece) for piece in pieces]
    for encoder in (Encoder(bpe), Encoder(bpe, words=50)):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(encoder.encode, map(column, pieces * 2)))
        assert list(map(lists, found)) == wanted * 2


def test_slices_other_string_types_and_empty_texts(bpe, shared):
    values = ["first one", "", "zwei  Wörter", "", " ", "ende"]
    assert lists(shared.encode(column(values)[1:5])) == expected(bpe, values[1:5])
    assert lists(shared.encode(pa.array(values, pa.string())[2:])) == expected(bpe, values[2:])
    assert lists(shared.encode(column(["", ""]))) == [[], []]
    empty = shared.encode(column([]))
    assert (len(empty.ids), empty.offsets.tolist()) == (0, [0])


def test_ids_have_the_smallest_type(shared):
    assert shared.encode(column(["a"])).ids.dtype == np.uint16
    assert encoder("unigram_always").encode(column(["a"])).ids.dtype == np.uint8


def test_null_is_refused(shared):
    with pytest.raises(ValueError, match="null"):
        shared.encode(column(["a", None]))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=True)
AFTER_SPACE = pre_tokenizers.Split(" ", "merged_with_next")
CHANGES = {
    "prefix": {"pre_tokenizer": pre_tokenizers.Sequence([AFTER_SPACE, BYTES])},
    "merged": {"pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous")},
    "template": {
        "post_processor": processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    },
    "specials": {"encode_special_tokens": False},
    "added": lambda other: other.add_tokens([AddedToken("two words")]),
    "truncation": lambda other: other.enable_truncation(3),
    "padding": lambda other: other.enable_padding(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_unknown_configurations_fall_back(bpe, name):
    other = Tokenizer.from_str(bpe.to_str())
    other.encode_special_tokens = True
    assert words_are_independent(other)
    change = CHANGES[name]
    if callable(change):
        change(other)
    else:
        ((field, value),) = change.items()
        setattr(other, field, value)
    assert not Encoder(other).by_word
    values = ["Two words and  <s> Two", "two words", " A "]
    assert lists(Encoder(other).encode(column(values))) == expected(other, values)
