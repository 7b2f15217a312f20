import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import steady, write_tokenizer
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from transformer_core.data.arrays import evenly_spaced, ranges
from transformer_core.data.encoding import Encoded, Encoder, concatenate, words_are_independent
from transformer_core.data.tokenizer import load_tokenizer

# What word boundaries could go wrong on, mixed with any other text.
TRICKY = [
    *(" ", "  ", "\t", "\n", "\u00a0", "\u2028", "\u3000", "\x00", "\x1f", "\x7f"),
    *("e\u0301", "\u0301", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "שלום", "مرحبا"),
    *("</s>", "<pad>", "<s>", "'s", "'", "The", " the", "Straße", "12,50", "a" * 300, "日本語"),
]
texts = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=4))).map("".join)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def shared(bpe):
    return Encoder(bpe)


def column(values):
    return pa.array(values, pa.large_string())


def lists(encoded):
    return [part.tolist() for part in np.split(encoded.ids, encoded.offsets[1:-1])]


def expected(bpe, values):
    return [encoding.ids for encoding in bpe.encode_batch(values, add_special_tokens=False)]


@steady
@given(values=st.lists(texts, min_size=1))
def test_equals_the_tokenizer_id_for_id(bpe, shared, values):
    assert shared.by_word
    encoded = shared.encode(column(values))
    assert lists(encoded) == expected(bpe, values)
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)


@steady
@given(values=st.lists(texts, min_size=1, max_size=8), limit=st.integers(0, 6))
def test_a_small_cache_changes_nothing(bpe, values, limit):
    encoder = Encoder(bpe, cached_words=limit)
    for part in (values, values[::-1], values[:1]):
        assert lists(encoder.encode(column(part))) == expected(bpe, part)


def test_cache_is_bounded_and_used(bpe, monkeypatch):
    encoder = Encoder(bpe, cached_words=10)
    encoded = []
    plainly = encoder._encode_plainly
    monkeypatch.setattr(
        encoder, "_encode_plainly", lambda words: encoded.extend(words) or plainly(words)
    )
    encoder.encode(column(["a b b b", "a c"]))
    assert sorted(encoded) == [" b", " c", "a"]
    encoder.encode(column(["a c b d"]))
    assert encoded[3:] == [" d"]
    for number in range(50):
        encoder.encode(column([f"a {number}"]))
        assert len(encoder._known) == len(encoder._cache.lengths) <= 10


def test_slices_other_string_types_and_empty_texts(bpe, shared):
    values = ["first one", "", "zwei  Wörter", "", " ", "ende"]
    assert lists(shared.encode(column(values)[1:5])) == expected(bpe, values[1:5])
    assert lists(shared.encode(pa.array(values, pa.string())[2:])) == expected(bpe, values[2:])
    assert lists(shared.encode(column(["", ""]))) == [[], []]
    empty = shared.encode(column([]))
    assert (len(empty.ids), empty.offsets.tolist()) == (0, [0])


def test_null_is_refused(shared):
    with pytest.raises(ValueError, match="null"):
        shared.encode(column(["a", None]))


def test_unknown_configurations_fall_back(bpe):
    def lower(other):
        other.normalizer = normalizers.Lowercase()

    def whitespace(other):
        other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)

    def no_pre_tokenizer(other):
        other.pre_tokenizer = None

    def prefix(other):
        other.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(" ", "merged_with_next"),
                pre_tokenizers.ByteLevel(add_prefix_space=True),
            ]
        )

    def template(other):
        other.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )

    def added(other):
        other.add_tokens([AddedToken("two words")])

    def specials(other):
        other.encode_special_tokens = False

    def truncation(other):
        other.enable_truncation(3)

    values = ["Two words and  <s> Two", "two words", " A"]
    changes = [
        *(lower, whitespace, no_pre_tokenizer, prefix),
        *(template, added, specials, truncation),
    ]
    for change in changes:
        other = Tokenizer.from_str(bpe.to_str())
        other.encode_special_tokens = True
        assert words_are_independent(other)
        change(other)
        encoder = Encoder(other)
        assert not encoder.by_word, change.__name__
        assert lists(encoder.encode(column(values))) == expected(other, values)


@steady
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ranges(rows):
    starts = np.array([start for start, _ in rows], np.int64)
    lengths = np.array([length for _, length in rows], np.int32)
    wanted = [value for start, length in rows for value in range(start, start + length)]
    assert ranges(starts, lengths).tolist() == wanted


@steady
@given(total=st.integers(0, 60), count=st.integers(0, 80))
def test_evenly_spaced(total, count):
    rows = evenly_spaced(total, count)
    assert len(rows) == min(total, count)
    if len(rows):
        gaps = np.diff([*rows, total])
        assert rows[0] == 0
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1


def test_take_and_concatenate():
    parts = [[1, 2], [], [3], [4, 5, 6]]
    encoded = Encoded(np.arange(1, 7, dtype=np.uint32), np.array([0, 2, 2, 3, 6]))
    assert lists(encoded) == parts
    assert lists(encoded.take(np.array([3, 1, 0, 3]))) == [parts[3], [], parts[0], parts[3]]
    assert lists(concatenate([encoded, encoded.take(np.array([2]))])) == [*parts, [3]]
