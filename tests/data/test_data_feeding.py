import threading
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pair_files import steady, tokens_of

from schemas.config.data import FixedSize, PackedRows, PaddedRows, TokenBudget
from transformer_core.data.batching.collate import collate
from transformer_core.data.batching.epoch_plan import plan_epoch
from transformer_core.data.batching.feeding import Feed, WindowRows, evaluation_batches
from transformer_core.data.batching.representative import representative_order
from transformer_core.data.sharding.shard_store import open_shards
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

CPU = torch.device("cpu")
PACKED = PackedRows(kind="packed", tokens=40)
rows = st.sampled_from([PaddedRows(), PACKED])
batchings = st.one_of(
    st.builds(TokenBudget, tokens=st.integers(50, 900), rows=rows),
    st.builds(FixedSize, kind=st.just("fixed_size"), pairs=st.integers(1, 70), rows=rows),
)


@pytest.fixture(scope="module")
def store(made):
    return open_shards(made / "shards" / "manifest.json")


def feed(store, batching=None, rank=0, world=1, micro=1, seed=3, prefetch=None, device=CPU):
    batching = batching or TokenBudget(tokens=300)
    return Feed(store, batching, seed, rank, world, micro, device, prefetch)


def as_lists(batch):
    tensors = [
        [getattr(micro, name).tolist() for name in ("source", "target_input", "target_output")]
        for micro in batch.micro_batches
    ]
    counts = (batch.pairs, batch.tokens, batch.target_tokens, batch.padded_tokens)
    return batch.epoch, batch.index, counts, tensors


def gathered(store, rows):
    rows = np.array(rows, np.int64)
    return store.source.gather(rows), store.target.gather(rows)


def test_collate(store):
    rows = [40, 3, 59, 3]
    batch = collate(*gathered(store, rows))
    sources = [ids.tolist() for ids in store.source_rows(rows)]
    targets = [ids.tolist() for ids in store.target_rows(rows)]

    def padded(lists):
        longest = max(map(len, lists))
        return [ids + [PAD] * (longest - len(ids)) for ids in lists]

    assert batch.source.tolist() == padded([[*ids, EOS] for ids in sources])
    assert batch.target_input.tolist() == padded([[BOS, *ids] for ids in targets])
    assert batch.target_output.tolist() == padded([[*ids, EOS] for ids in targets])
    tensors = (batch.source, batch.target_input, batch.target_output)
    assert all(tensor.dtype == torch.int64 for tensor in tensors)
    assert batch.pairs == 4
    assert batch.padded_tokens == batch.source.numel() + batch.target_output.numel()


def test_a_batch_instead_of_the_next_uses_up_no_other(store):
    expected = [as_lists(batch) for batch in islice(feed(store).batches(), 4)]
    one = feed(store)
    few, found = one.fewer(3), []
    assert (few.pairs, len(few.micro_batches[0].source)) == (3, 3)
    batches = one.batches()
    for instead in (None, few, few, None, None, few, None):
        one.instead = instead
        found.append(next(batches))
    assert [batch for batch in found if batch is few] == [few] * 3
    assert [as_lists(batch) for batch in found if batch is not few] == expected


def test_any_few_representative_batches_have_about_the_mean_size():
    random = np.random.default_rng(1)
    sizes = np.stack([np.full(400, 32), *random.gamma(4.0, size=(2, 400))], axis=1)
    order = list(representative_order(sizes))
    assert sorted(order) == list(range(400))

    def scatter(values):
        # Without the last ones, among which little choice is left.
        return values[:320].reshape(40, 8, 3).mean(axis=1).std(axis=0)

    assert (scatter(sizes[order])[1:] < scatter(sizes)[1:] / 2).all()
    assert list(representative_order(np.full((5, 3), 7.0))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batching", [None, FixedSize(kind="fixed_size", pairs=4)])
def test_ranks_parts_and_packed_rows_share_a_representative_order(store, batching):
    def indexes(rows, **division):
        of_rows = (batching or TokenBudget(tokens=300)).model_copy(update={"rows": rows})
        made = feed(store, of_rows, **division)
        made.representative = True
        return [(batch.epoch, batch.index) for batch in islice(made.batches(), 40)]

    expected = indexes(PaddedRows())
    assert expected != [
        (batch.epoch, batch.index) for batch in islice(feed(store, batching).batches(), 40)
    ]
    first_epoch = [index for epoch, index in expected if epoch == 0]
    assert sorted(first_epoch) == list(range(len(first_epoch)))
    for division in ({"world": 2}, {"rank": 1, "world": 2}, {"micro": 4}):
        assert indexes(PaddedRows(), **division) == expected
    assert indexes(PACKED) == expected


@pytest.mark.parametrize("rows", [PaddedRows(), PACKED])
def test_ranks_share_a_batch_of_fewer_pairs(store, rows):
    batching = TokenBudget(tokens=300, rows=rows)
    few = [feed(store, batching, rank, world=2, micro=2).fewer(8) for rank in (0, 1)]
    assert [batch.pairs for batch in few] == [8, 8]
    assert sum(micro.pairs for batch in few for micro in batch.micro_batches) == 8


@steady
@given(batching=batchings, world=st.integers(1, 5), micro=st.integers(1, 4))
def test_ranks_share_each_global_batch_and_agree_on_its_counts(store, batching, world, micro):
    steps = 4
    alone = list(islice(feed(store, batching).batches(), steps))
    ranks = [
        list(islice(feed(store, batching, rank, world, micro).batches(), steps))
        for rank in range(world)
    ]
    for step in range(steps):
        together = [batches[step] for batches in ranks]
        micros = [micro for batch in together for micro in batch.micro_batches]
        assert len(micros) == world * micro
        labels = sum(int((m.target_output != PAD).sum()) for m in micros)
        pairs, padded = (sum(getattr(m, of) for m in micros) for of in ("pairs", "padded_tokens"))
        tokens = sum(map(tokens_of, micros))
        place = (alone[step].epoch, alone[step].index)
        counts = (pairs, tokens, labels, padded)
        assert {as_lists(batch)[:3] for batch in together} == {(*place, counts)}
        assert tokens == alone[step].tokens
        assert sum(m.source.numel() + m.target_output.numel() for m in micros) == sum(
            m.padded_tokens for m in micros
        )
        assert sentences(micros) == sentences(alone[step].micro_batches)


def sentences(micros):
    """The pairs of ids in micro-batches, sorted, without padding and ends."""
    return sorted(
        pair
        for micro in micros
        if micro.pairs
        for pair in zip(cut(micro.source), cut(micro.target_output), strict=True)
    )


def cut(tokens):
    """The ids of each sentence in a tensor of rows, in which EOS ends every sentence."""
    found, sentence = [], []
    for row in tokens.tolist():
        for token in row:
            if token == EOS:
                found.append(sentence)
                sentence = []
            elif token != PAD:
                sentence.append(token)
    assert not sentence
    return found


def epoch_batches(store):
    (window,) = plan_epoch(store, TokenBudget(tokens=300), 3, 0)
    return len(window)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_resume_equals_uninterrupted(store, prefetch):
    whole = feed(store)
    per_epoch = epoch_batches(store)
    steps = 2 * per_epoch + 2
    expected = [as_lists(batch) for batch in islice(whole.batches(), steps)]
    assert [item[:2] for item in expected[per_epoch - 1 : per_epoch + 1]] == [
        (0, per_epoch - 1),
        (1, 0),
    ]
    for step in range(steps):
        epoch, index = expected[step - 1][:2] if step else (0, -1)
        batches = feed(store, prefetch=prefetch).batches(epoch, index + 1)
        found = [as_lists(batch) for batch in islice(batches, min(3, steps - step))]
        assert feed_threads() == bool(prefetch)
        batches.close()
        assert feed_threads() == 0
        assert found == expected[step : step + 3]


def feed_threads():
    return sum(thread.name.startswith("feed") for thread in threading.enumerate())


def test_a_gpu_gets_batches_without_a_thread(store, monkeypatch):
    """All but the copies, which need a GPU."""
    for copy in ("_sent", "_received"):
        monkeypatch.setattr(Feed, copy, lambda feed, made: made)
    found = islice(feed(store, prefetch=0, device=torch.device("cuda")).batches(), 3)
    assert list(map(as_lists, found)) == list(map(as_lists, islice(feed(store).batches(), 3)))


def test_error_in_the_thread_reaches_the_training(store, monkeypatch):
    make = WindowRows.batch

    def broken(rows, index, part):
        if index == 2:
            raise OSError("the disk is gone")
        return make(rows, index, part)

    monkeypatch.setattr(WindowRows, "batch", broken)
    batches = feed(store, prefetch=2).batches()
    assert [next(batches).index for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert feed_threads() == 0


@steady
@given(
    max_pairs=st.one_of(st.none(), st.integers(1, 80)),
    size=st.one_of(
        st.fixed_dictionaries({"pairs_per_batch": st.integers(1, 70)}),
        st.fixed_dictionaries({"tokens_per_batch": st.integers(1, 900)}),
    ),
)
def test_evaluation_takes_each_of_the_first_pairs_once(store, max_pairs, size):
    found = list(evaluation_batches(store, max_pairs, **size))
    rows = np.concatenate([rows for rows, _ in found])
    assert sorted(rows.tolist()) == list(range(min(max_pairs or 60, 60)))
    assert all(a >= b for a, b in pairwise(map(len, store.source_rows(rows))))
    for rows, batch in found:
        assert batch.pairs == len(rows)
        assert batch.source.tolist() == collate(*gathered(store, rows)).source.tolist()
        assert batch.pairs <= size.get("pairs_per_batch", 60)
        assert batch.pairs == 1 or batch.padded_tokens <= size.get("tokens_per_batch", 10**9)


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch", [0, None])
def test_cuda_gets_the_same_batches(store, prefetch):
    device = torch.device("cuda", torch.cuda.current_device())
    batches = feed(store, micro=2, device=device, prefetch=prefetch).batches()
    expected = [as_lists(batch) for batch in islice(feed(store, micro=2).batches(), 12)]
    for wanted, batch in zip(expected, batches, strict=False):
        assert batch.micro_batches[0].source.device == device
        assert as_lists(batch) == wanted
    batches.close()
    assert feed_threads() == 0


@pytest.mark.gpu
def test_cuda_batches_wait_for_their_copies_and_keep_their_memory(store):
    """A busy stream uses batches while later ones are copied, which must not overwrite them."""
    device = torch.device("cuda", torch.cuda.current_device())
    expected = [
        int(batch.micro_batches[0].source.sum()) for batch in islice(feed(store).batches(), 200)
    ]
    busy = torch.randn(2_000, 2_000, device=device)
    batches, sums = feed(store, device=device).batches(), []
    for batch in islice(batches, 200):
        busy = torch.tanh(busy @ busy)
        sums.append(batch.micro_batches[0].source.sum())
        del batch
    batches.close()
    assert torch.stack(sums).tolist() == expected
