from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from length_stores import normal_text, store_of
from pair_files import steady

from schemas.config.batching import FixedSize, PackedRows, TokenBudget
from transformer_core.data.batching import epoch_plan as module
from transformer_core.data.batching.epoch_plan import cut_by_tokens, divide, plan_epoch

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


@pytest.fixture
def small_windows(monkeypatch):
    """Many windows of few blocks even for a small corpus."""
    monkeypatch.setattr(module, "WINDOW", 24)
    monkeypatch.setattr(module, "LARGEST_WINDOW", 32)
    monkeypatch.setattr(module, "BLOCK", 3)


@steady
@given(lengths=lengths, batching=batchings, seed=st.integers(0, 2**63), epoch=st.integers(0, 99))
def test_every_pair_exactly_once_in_batches_that_are_not_empty(lengths, batching, seed, epoch):
    rows = plan(*lengths, batching, seed, epoch)
    assert sorted(chain.from_iterable(as_lists(rows))) == list(range(lengths.shape[1]))
    assert all(len(batch) for batch in rows)


@pytest.mark.usefixtures("small_windows")
def test_every_pair_exactly_once_in_many_windows():
    # One function, not a property: hypothesis would see the patched sizes once only.
    for pairs in [*range(1, 40), 71, 72, 73, 200, 211]:
        sources, targets = normal_text(pairs, pairs)
        for batching in (TokenBudget(tokens=200), fixed(5), fixed(7), fixed(40)):
            for epoch in range(2):
                windows = list(plan_epoch(store_of(sources, targets), batching, 3, epoch))
                rows = [batch for window in windows for batch in window.rows]
                assert sorted(chain.from_iterable(as_lists(rows))) == list(range(pairs))
                starts = [window.first_batch for window in windows]
                assert starts == [0, *np.cumsum([len(window) for window in windows])[:-1]]
                if isinstance(batching, FixedSize):
                    sizes = {len(batch) for batch in rows[:-1]}
                    assert sizes <= {batching.pairs}
                    assert len(rows) == -(-pairs // batching.pairs)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("batching", [TokenBudget(tokens=200), fixed(5), fixed(30)])
def test_windows_from_any_batch_on(batching):
    store = store_of(*normal_text(200))
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
        with pytest.raises(ValueError, match=f"epoch 1: it has {len(batches)} batches"):
            list(plan_epoch(store, batching, 3, 1, outside))


class Reads:
    """A side of a store that notes which lengths are asked for."""

    def __init__(self, side):
        self.side = side
        self.pairs = 0

    def lengths(self, spans):
        self.pairs += int((spans[:, 1] - spans[:, 0]).sum())
        return self.side.lengths(spans)


def test_the_first_batch_of_a_large_corpus_takes_one_window():
    pairs = 4 * module.WINDOW
    store = store_of(np.full(pairs, 3), np.full(pairs, 3))
    store.source = Reads(store.source)
    windows = plan_epoch(store, TokenBudget(tokens=800), 1, 0)
    assert len(next(windows).order) == module.WINDOW
    assert store.source.pairs == module.WINDOW
    (last,) = plan_epoch(store, fixed(64), 1, 0, pairs // 64 - 1)
    assert len(last.order) == module.WINDOW
    assert store.source.pairs == module.WINDOW, "a fixed size asks for no lengths"


def test_windows_grow_with_the_batches_up_to_a_limit():
    pairs = 2 * module.LARGEST_WINDOW
    store = store_of(np.full(pairs, 1), np.full(pairs, 1))

    def first_window(tokens):
        return len(next(plan_epoch(store, TokenBudget(tokens=tokens), 1, 0)).order)

    assert first_window(400) == module.WINDOW
    assert first_window(1_024) == 256 * module.WINDOW_BATCHES
    assert first_window(100_000) == module.LARGEST_WINDOW


def test_a_window_takes_blocks_from_all_over_the_corpus():
    pairs = 6 * module.WINDOW + 100
    store = store_of(np.full(pairs, 1), np.full(pairs, 1))
    seen = []
    for epoch in range(2):
        for window in plan_epoch(store, fixed(64), 1, epoch):
            sixths = np.histogram(np.concatenate(window.rows), bins=6, range=(0, pairs))[0]
            assert sixths.min() > 0.5 * len(window.order) / 6
            assert sixths.max() < 2 * len(window.order) / 6
            sizes = window.spans[:, 1] - window.spans[:, 0]
            assert np.median(sizes) == module.BLOCK
        seen.append({tuple(span) for span in window.spans.tolist()})
    assert not seen[0] & seen[1], "blocks begin elsewhere in the next epoch"


@steady
@given(lengths=lengths, tokens=st.integers(1, 400), seed=st.integers(0, 9))
def test_budget_holds_unless_one_pair_exceeds_it(lengths, tokens, seed):
    rows = plan(*lengths, TokenBudget(tokens=tokens), seed)
    sizes = padded_sizes(rows, *lengths)
    assert all(len(batch) == 1 for batch, size in zip(rows, sizes, strict=True) if size > tokens)


@steady
@given(lengths=lengths, tokens=st.integers(1, 400))
def test_cut_is_greedy(lengths, tokens):
    """Against the definition: the next pair starts a batch only where it does not fit."""
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


def test_a_batch_may_use_the_whole_budget():
    lengths = np.full(7, 4)
    assert cut_by_tokens(lengths, lengths, 30).tolist() == [0, 3, 6, 7]
    assert cut_by_tokens(lengths, lengths, 29).tolist() == [0, 2, 4, 6, 7]


@steady
@given(lengths=lengths, batching=batchings, parts=st.integers(1, 40))
def test_parts_are_every_so_manyth_pair(lengths, batching, parts):
    (window,) = plan_epoch(store_of(*lengths), batching, 1, 0)
    order, starts = divide(window, parts)
    found = [order[a:b].tolist() for a, b in pairwise(starts.tolist())]
    expected = [
        window.order[a:b][part::parts].tolist()
        for a, b in pairwise(window.starts.tolist())
        for part in range(parts)
    ]
    assert found == expected


@pytest.mark.parametrize("batching", [TokenBudget(tokens=500), fixed(64)])
def test_same_arguments_same_plan_other_seed_or_epoch_other_batches(batching):
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


@steady
@given(lengths=lengths, size=st.integers(1, 200), scale=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_a_scaled_plan_is_that_of_the_scaled_size(lengths, size, scale):
    scaled = max(1, round(size * scale))
    for batching, plain in [
        (TokenBudget(tokens=size, scale=scale), TokenBudget(tokens=scaled)),
        (fixed(size, scale=scale), fixed(scaled)),
    ]:
        assert as_lists(plan(*lengths, batching)) == as_lists(plan(*lengths, plain))


def test_study_is_pinned(monkeypatch):
    """A checkpoint resumes in the middle of an epoch: the order must outlive versions."""
    sources, targets = np.arange(10) % 4, np.arange(10) % 3
    assert as_lists(plan(sources, targets, fixed(4))) == [[2, 6, 8, 3], [9, 5, 0, 1], [4, 7]]
    assert as_lists(plan(sources, targets, TokenBudget(tokens=20))) == [
        [5, 2, 1],
        [7, 6, 3],
        [0, 9, 4, 8],
    ]
    monkeypatch.setattr(module, "WINDOW", 4)
    monkeypatch.setattr(module, "BLOCK", 2)
    assert as_lists(plan(sources, targets, fixed(2))) == [[6, 7], [0, 1], [4, 3], [9, 5], [8, 2]]


@pytest.mark.parametrize(("pairs", "tokens"), [(20_000, 4_096), (30_000, 8_192)])
def test_little_padding_on_normal_text(pairs, tokens):
    sources, targets = normal_text(pairs)
    rows = plan(sources, targets, TokenBudget(tokens=tokens))
    real = sources.sum() + targets.sum() + 2 * pairs
    padded = padded_sizes(rows, sources, targets)
    assert 1 - real / padded.sum() < 0.10
    assert np.median(padded) > 0.95 * tokens


def test_batches_come_in_random_order_of_length():
    sources, targets = normal_text(20_000)
    rows = plan(sources, targets, TokenBudget(tokens=2_048))
    means = np.array([sources[batch].mean() for batch in rows])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2


def test_lengths_beyond_16_bits():
    sources, targets = np.array([70_000, 3, 70_001, 3]), np.array([70_000, 3, 2, 3])
    rows = plan(sources, targets, TokenBudget(tokens=100))
    assert sorted(sorted(batch.tolist()) for batch in rows) == [[0], [1, 3], [2]]
