from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_files import steady

from schemas.data import FixedSize, TokenBudget
from transformer_core.data.batching import cut_by_tokens, part_rows, plan_epoch

lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=80).map(
    lambda pairs: np.array(pairs, np.int32).T
)
batchings = st.one_of(
    st.builds(TokenBudget, tokens=st.integers(1, 400)),
    st.builds(FixedSize, kind=st.just("fixed_size"), pairs=st.integers(1, 90)),
)


def normal_text(pairs, seed=0):
    """Lengths like those of sentences: spread out, and similar on both sides."""
    random = np.random.default_rng(seed)
    sources = np.clip(random.lognormal(2.8, 0.5, pairs), 1, 128).astype(np.int32)
    targets = np.clip(sources * random.normal(1.05, 0.2, pairs), 1, 128).astype(np.int32)
    return sources, targets


def padded_sizes(plan, sources, targets):
    rows = [plan.rows(batch) for batch in range(len(plan))]
    return np.array([len(r) * (sources[r].max() + targets[r].max() + 2) for r in rows])


@steady
@given(lengths=lengths, batching=batchings, seed=st.integers(0, 2**63), epoch=st.integers(0, 99))
def test_every_pair_exactly_once_in_batches_that_are_not_empty(lengths, batching, seed, epoch):
    plan = plan_epoch(*lengths, batching, seed, epoch)
    assert sorted(plan.order.tolist()) == list(range(lengths.shape[1]))
    assert plan.starts[0] == 0
    assert plan.starts[-1] == len(plan.order)
    assert (np.diff(plan.starts) > 0).all()
    assert (plan.order.dtype, plan.starts.dtype) == (np.int64, np.int64)


@steady
@given(lengths=lengths, tokens=st.integers(1, 400), seed=st.integers(0, 9))
def test_budget_holds_unless_one_pair_exceeds_it(lengths, tokens, seed):
    plan = plan_epoch(*lengths, TokenBudget(tokens=tokens), seed, 0)
    sizes = padded_sizes(plan, *lengths)
    assert (np.diff(plan.starts)[sizes > tokens] == 1).all()


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
@given(lengths=lengths, batching=batchings, world=st.integers(1, 9), micro=st.integers(1, 5))
def test_parts_partition_every_batch_evenly(lengths, batching, world, micro):
    plan = plan_epoch(*lengths, batching, 1, 0)
    parts = world * micro
    for batch in range(len(plan)):
        rows = [part_rows(plan, batch, part, parts).tolist() for part in range(parts)]
        assert sorted(chain.from_iterable(rows)) == sorted(plan.rows(batch).tolist())
        sizes = [len(part) for part in rows]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("batching", [TokenBudget(tokens=500), FixedSize(kind="fixed_size")])
def test_same_arguments_same_plan_other_seed_or_epoch_other_batches(batching):
    sources, targets = normal_text(600)
    plans = {
        key: plan_epoch(sources, targets, batching, *key)
        for key in [(1, 0), (2, 0), (1, 1), (0, 1)]
    }
    again = plan_epoch(sources, targets, batching, 1, 0)
    assert again.order.tolist() == plans[1, 0].order.tolist()
    assert again.starts.tolist() == plans[1, 0].starts.tolist()
    contents = [
        {frozenset(plan.rows(batch).tolist()) for batch in range(len(plan))}
        for plan in plans.values()
    ]
    for one, first in enumerate(contents):
        for other in contents[one + 1 :]:
            assert len(first & other) < len(first) / 4


def test_plan_does_not_depend_on_the_integer_type():
    sources, targets = normal_text(300)
    plan = plan_epoch(sources, targets, TokenBudget(tokens=300), 1, 0)
    wide = plan_epoch(
        sources.astype(np.int64), targets.astype(np.uint16), TokenBudget(tokens=300), 1, 0
    )
    assert wide.order.tolist() == plan.order.tolist()
    assert wide.starts.tolist() == plan.starts.tolist()


@steady
@given(lengths=lengths, size=st.integers(1, 200), scale=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_a_scaled_plan_is_that_of_the_scaled_size(lengths, size, scale):
    scaled = max(1, round(size * scale))
    for batching, plain in [
        (TokenBudget(tokens=size, scale=scale), TokenBudget(tokens=scaled)),
        (
            FixedSize(kind="fixed_size", pairs=size, scale=scale),
            FixedSize(kind="fixed_size", pairs=scaled),
        ),
    ]:
        plan, expected = (plan_epoch(*lengths, b, 1, 0) for b in (batching, plain))
        assert plan.order.tolist() == expected.order.tolist()
        assert plan.starts.tolist() == expected.starts.tolist()


def test_plan_is_pinned():
    """A checkpoint resumes in the middle of an epoch: the order must outlive versions."""
    sources, targets = np.arange(10) % 4, np.arange(10) % 3
    fixed = plan_epoch(sources, targets, FixedSize(kind="fixed_size", pairs=4), 1, 0)
    assert fixed.starts.tolist() == [0, 4, 8, 10]
    assert fixed.order.tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1]
    budget = plan_epoch(sources, targets, TokenBudget(tokens=20), 1, 0)
    assert [budget.rows(batch).tolist() for batch in range(len(budget))] == [
        [8, 5, 2],
        [0, 9, 4, 1],
        [7, 6, 3],
    ]


@pytest.mark.parametrize(("pairs", "tokens"), [(20_000, 4_096), (30_000, 8_192)])
def test_little_padding_on_normal_text(pairs, tokens):
    sources, targets = normal_text(pairs)
    plan = plan_epoch(sources, targets, TokenBudget(tokens=tokens), 1, 0)
    real = sources.sum() + targets.sum() + 2 * pairs
    padded = padded_sizes(plan, sources, targets)
    assert 1 - real / padded.sum() < 0.10
    assert np.median(padded) > 0.95 * tokens


def test_batches_come_in_random_order_of_length():
    sources, targets = normal_text(20_000)
    plan = plan_epoch(sources, targets, TokenBudget(tokens=2_048), 1, 0)
    means = np.array([sources[plan.rows(batch)].mean() for batch in range(len(plan))])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2


def test_lengths_beyond_16_bits():
    sources, targets = np.array([70_000, 3, 70_001, 3]), np.array([70_000, 3, 2, 3])
    plan = plan_epoch(sources, targets, TokenBudget(tokens=100), 1, 0)
    rows = sorted(sorted(plan.rows(batch).tolist()) for batch in range(len(plan)))
    assert rows == [[0], [1, 3], [2]]
