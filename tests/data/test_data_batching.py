"""Planning, packing and padding of global batches, which must not change by a bit."""

import hashlib
from contextlib import closing
from itertools import chain, islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pair_files import normal_text, steady, store_of

from schemas.config.data import FixedSize, PackedRows, PaddedRows, TokenBudget
from transformer_core.data.batching import epoch_plan as module
from transformer_core.data.batching.epoch_plan import ROUNDS, cut_by_tokens, permute, plan_epoch
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.batching.window_rows import WindowRows, pack
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=80).map(
    lambda pairs: np.array(pairs, np.int32).T
)
batchings = st.one_of(
    st.builds(TokenBudget, tokens=st.integers(1, 400)),
    st.builds(FixedSize, kind=st.just("fixed_size"), pairs=st.integers(1, 90)),
)


def fixed(pairs, **settings):
    return FixedSize(kind="fixed_size", pairs=pairs, **settings)


def plan(sources, targets, batching, seed=1, epoch=0, batch=0):
    """The pairs of every global batch of an epoch."""
    windows = plan_epoch(store_of(sources, targets), batching, seed, epoch, batch)
    return [rows for window in windows for rows in window.rows]


def as_lists(rows):
    return [batch.tolist() for batch in rows]


def padded_sizes(rows, sources, targets):
    return np.array([len(r) * (sources[r].max() + targets[r].max() + 2) for r in rows])


def use_small_windows(patch):
    """Many windows of few blocks even for a small corpus."""
    patch.setattr(module, "WINDOW", 24)
    patch.setattr(module, "LARGEST_WINDOW", 32)
    patch.setattr(module, "BLOCK", 3)


@steady
@given(
    lengths=st.one_of(lengths, st.integers(1, 211).map(normal_text)),
    batching=batchings,
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 99),
    small=st.booleans(),
)
def test_every_pair_exactly_once_in_batches_of_the_right_size(
    lengths, batching, seed, epoch, small
):
    with pytest.MonkeyPatch.context() as patch:
        if small:
            use_small_windows(patch)
        windows = list(plan_epoch(store_of(*lengths), batching, seed, epoch))
    rows = [batch for window in windows for batch in window.rows]
    pairs = len(lengths[0])
    assert sorted(chain.from_iterable(as_lists(rows))) == list(range(pairs))
    starts = [window.first_batch for window in windows]
    assert starts == [0, *np.cumsum([len(window) for window in windows])[:-1]]
    if isinstance(batching, FixedSize):
        assert {len(batch) for batch in rows[:-1]} <= {batching.pairs}
        assert len(rows) == -(-pairs // batching.pairs)
    else:
        sizes = padded_sizes(rows, *lengths)
        alone = [len(batch) == 1 for batch in rows]
        assert ((sizes <= batching.tokens) | alone).all(), "a pair may exceed the budget by itself"


@pytest.mark.parametrize("batching", [TokenBudget(tokens=200), fixed(5), fixed(30)])
def test_planning_can_start_at_any_batch(batching, monkeypatch):
    use_small_windows(monkeypatch)
    store = store_of(*normal_text(150))
    whole = list(plan_epoch(store, batching, 3, 1))
    assert len(whole) > 4
    batches = [rows.tolist() for window in whole for rows in window.rows]
    for batch in range(len(batches)):
        windows = list(plan_epoch(store, batching, 3, 1, batch))
        first = windows[0].first_batch
        assert first <= batch < first + len(windows[0])
        assert [rows.tolist() for window in windows for rows in window.rows] == batches[first:]
    assert list(plan_epoch(store, batching, 3, 1, len(batches))) == []
    for outside in (-1, len(batches) + 1):
        with pytest.raises(ValueError, match=f"epoch 1: the epoch has {len(batches)} batches"):
            list(plan_epoch(store, batching, 3, 1, outside))


@steady
@given(lengths=lengths, tokens=st.integers(1, 400))
def test_cut_is_greedy(lengths, tokens):
    """Compares with the definition: a pair starts a batch only if it does not fit."""
    sources, targets = lengths
    starts, longest = [0], [0, 0]
    for row, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        rows = row - starts[-1] + 1
        together = [max(longest[0], source + 1), max(longest[1], target + 1)]
        if rows > 1 and rows * sum(together) > tokens:
            starts.append(row)
            together = [source + 1, target + 1]
        longest = together
    assert cut_by_tokens(sources, targets, tokens).tolist() == [*starts, len(sources)]


@pytest.mark.parametrize("batching", [TokenBudget(tokens=500), fixed(64)])
def test_seed_and_epoch_alone_change_the_batches(batching):
    lengths = normal_text(600)
    plans = [plan(*lengths, batching, *key) for key in [(1, 0), (2, 0), (1, 1), (0, 1)]]
    assert as_lists(plan(*lengths, batching, 1, 0)) == as_lists(plans[0])
    contents = [{frozenset(rows.tolist()) for rows in batches} for batches in plans]
    for one, first in enumerate(contents):
        for other in contents[one + 1 :]:
            assert len(first & other) < len(first) / 4


@pytest.mark.parametrize("batching", [TokenBudget(tokens=300), fixed(20)])
def test_rows_and_shards_change_no_batch(batching):
    lengths = normal_text(300)
    packed = batching.model_copy(update={"rows": PackedRows(kind="packed")})
    expected = as_lists(plan(*lengths, batching))
    assert as_lists(plan(*lengths, packed)) == expected
    windows = plan_epoch(store_of(*lengths, per_shard=7), batching, 1, 0)
    assert as_lists(rows for window in windows for rows in window.rows) == expected


def test_the_order_is_pinned(monkeypatch):
    """A checkpoint may resume in the middle of an epoch, so the order must outlive versions."""
    sources, targets = np.arange(10) % 4, np.arange(10) % 3
    monkeypatch.setattr(module, "WINDOW", 4)
    monkeypatch.setattr(module, "BLOCK", 2)
    assert as_lists(plan(sources, targets, fixed(2))) == [[6, 7], [0, 1], [4, 3], [9, 5], [8, 2]]


def test_little_padding_on_normal_text():
    pairs, tokens = 20_000, 4_096
    sources, targets = normal_text(pairs)
    rows = plan(sources, targets, TokenBudget(tokens=tokens))
    real = sources.sum() + targets.sum() + 2 * pairs
    padded = padded_sizes(rows, sources, targets)
    assert 1 - real / padded.sum() < 0.10
    assert np.median(padded) > 0.95 * tokens


def test_lengths_beyond_16_bits():
    sources, targets = np.array([70_000, 3, 70_001, 3]), np.array([70_000, 3, 2, 3])
    rows = plan(sources, targets, TokenBudget(tokens=100))
    assert sorted(sorted(batch.tolist()) for batch in rows) == [[0], [1, 3], [2]]


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (TokenBudget(tokens=800), "da507323556f34bc"),
        (TokenBudget(tokens=800, rows=PackedRows(kind="packed", tokens=64)), "630d48f8a0c292e9"),
        (fixed(16), "81b89498f08a78f2"),
    ],
)
def test_training_batches_do_not_change(batching, expected):
    feed = Feed(store_of(*normal_text(300)), batching, 1, 1, 2, 2, torch.device("cpu"))
    with closing(feed.batches()) as batches:
        first = list(islice(batches, 30))
    counts = [(b.pairs, b.tokens, b.target_tokens, b.padded_tokens) for b in first]
    digest = hashlib.sha256(repr(counts).encode())
    for batch in chain.from_iterable(one.micro_batches for one in first):
        for tensor in (batch.source, batch.target_input, batch.target_output):
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


keys = st.lists(st.integers(0, 2**64 - 1), min_size=ROUNDS, max_size=ROUNDS).map(
    lambda numbers: np.array(numbers, np.uint64)
)


@steady
@given(count=st.integers(1, 3_000), keys=keys, data=st.data())
def test_any_part_of_a_permutation_can_be_computed_alone(count, keys, data):
    whole = permute(np.arange(count), count, keys)
    assert sorted(whole.tolist()) == list(range(count))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert permute(np.arange(start, stop), count, keys).tolist() == whole[start:stop].tolist()


groups = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=20), min_size=1, max_size=8
)


@steady
@given(groups=groups, tokens=st.integers(1, 90))
def test_pairs_fill_rows_from_the_left_without_gap_or_overlap(groups, tokens):
    pairs = np.array([pair for group in groups for pair in group], np.int64).reshape(-1, 2)
    starts = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    packing = pack(pairs[:, 0], pairs[:, 1], starts, tokens)
    for group, (begin, end) in enumerate(pairwise(starts.tolist())):
        widths = [[0, 0]]
        for row in range(packing.rows[group]):
            mine = begin + np.flatnonzero(packing.row[begin:end] == row)
            assert len(mine), "no row is empty"
            # Source and target have the same order.
            order = mine[np.argsort(packing.source_column[mine])]
            for side, column in enumerate((packing.source_column, packing.target_column)):
                ends = column[order] + pairs[order, side]
                assert column[order].tolist() == [0, *ends[:-1]]
            widths.append(pairs[mine].sum(axis=0).tolist())
        assert [packing.source_width[group], packing.target_width[group]] == [
            max(width) for width in zip(*widths, strict=True)
        ]
        assert set(packing.row[begin:end].tolist()) == set(range(packing.rows[group]))
        # As many rows as the tokens require.
        length = max(tokens, pairs[begin:end].max(initial=0))
        assert packing.rows[group] == -(-pairs[begin:end].sum(axis=0).max() // length)


@pytest.mark.parametrize("token", [PAD, BOS, EOS])
def test_a_special_token_in_a_sentence_is_refused(token):
    store = store_of([3, 3], [3, 3])
    store.target.ids[0] = np.array([9, 9, 9, 9, token, 9], np.uint16)
    (window,) = plan_epoch(store, FixedSize(kind="fixed_size"), 1, 0)
    WindowRows(store, window, 1, PaddedRows())
    with pytest.raises(ValueError, match="a target sentence contains the special token"):
        WindowRows(store, window, 1, PackedRows(kind="packed"))


def taken(rows, store, count=6, pairs=8, rank=0, ranks=1):
    batching = FixedSize(kind="fixed_size", pairs=pairs, rows=rows)
    feed = Feed(store, batching, 1, rank, ranks, 1, torch.device("cpu"))
    with closing(feed.batches()) as batches:
        return list(islice(batches, count))


def test_a_part_without_pairs_has_one_token():
    batches = taken(PaddedRows(width_multiple=8), store_of(*normal_text(60)), 4, 1, rank=1, ranks=2)
    empty = [micro for batch in batches for micro in batch.micro_batches if not micro.pairs]
    assert empty
    for micro in empty:
        assert micro.source.shape == micro.target_output.shape == (1, 1)


ROUNDED = [
    PaddedRows(row_multiple=3, width_multiple=8),
    PackedRows(kind="packed", tokens=20, row_multiple=3, width_multiple=8),
]


def rounded_up(number, multiple):
    return multiple * -(-number // multiple)


@pytest.mark.parametrize("rows", ROUNDED)
def test_shapes_are_multiples_and_the_sentences_the_same(rows):
    store = store_of(*normal_text(60))
    plain = rows.model_copy(update={"row_multiple": 1, "width_multiple": 1})
    added = [0, 0]
    for one, other in zip(taken(plain, store), taken(rows, store), strict=True):
        (a,), (b,) = one.micro_batches, other.micro_batches
        assert other.tokens == one.tokens
        assert other.padded_tokens == b.padded_tokens > one.padded_tokens
        real = len(a.source)
        for side in ("source", "target_input", "target_output"):
            before, after = getattr(a, side), getattr(b, side)
            width = before.size(1)
            assert after.shape == (rounded_up(real, 3), rounded_up(width, 8))
            assert torch.equal(after[:real, :width], before)
            assert (after[:real, width:] == PAD).all()
            added[0] += len(after) - real
            added[1] += after.size(1) - width
        # Added rows have a beginning, but no label.
        assert (b.target_output[real:] == PAD).all()
        assert (b.source[real:, 0] == EOS).all()
        assert (b.target_input[real:, 0] == BOS).all()
    assert all(added)


@pytest.mark.parametrize("rows", ROUNDED)
def test_the_host_knows_the_length_of_every_sentence(rows):
    for one in taken(rows, store_of(*normal_text(60))):
        for batch in one.micro_batches:
            sources, targets = batch.known.lengths
            flat = batch.source[batch.source != PAD]
            ends = (flat == EOS).nonzero().squeeze(1)
            assert sources.tolist() == ends.diff(prepend=torch.tensor([-1])).tolist()
            flat = batch.target_input[batch.target_input != PAD]
            begins = (flat == BOS).nonzero().squeeze(1)
            assert targets.tolist() == begins.diff(append=torch.tensor([len(flat)])).tolist()
