"""Widths of batches rounded up."""

import pytest
import torch
from length_stores import normal_text, store_of

from schemas.config.batching import FixedSize, PackedRows, PaddedRows
from transformer_core.data.batching.feeding import Feed
from transformer_core.data.tokenizing.special_tokens import PAD


def taken(rows, store, count=6):
    batching = FixedSize(kind="fixed_size", pairs=8, rows=rows)
    feed = Feed(
        store, batching, seed=1, rank=0, world_size=1, micro_batches=1, device=torch.device("cpu")
    )
    batches = feed.batches()
    found = [next(batches) for _ in range(count)]
    batches.close()
    return found


@pytest.mark.parametrize("kind", [PaddedRows, PackedRows])
def test_widths_are_multiples_and_the_sentences_the_same(kind):
    name = {PaddedRows: "padded", PackedRows: "packed"}[kind]
    store = store_of(*normal_text(60))
    plain = taken(kind(kind=name), store)
    rounded = taken(kind(kind=name, width_multiple=8), store)
    widths = set()
    for one, other in zip(plain, rounded, strict=True):
        (a,), (b,) = one.micro_batches, other.micro_batches
        assert other.tokens == one.tokens
        assert other.padded_tokens == b.padded_tokens > one.padded_tokens
        for side in ("source", "target_input", "target_output"):
            before, after = getattr(a, side), getattr(b, side)
            width = before.size(1)
            assert after.size(1) == 8 * -(-width // 8)
            assert torch.equal(after[:, :width], before)
            assert (after[:, width:] == PAD).all()
            widths.add(width % 8)
    assert widths - {0}


def test_a_part_without_pairs_stays_one_token():
    store = store_of(*normal_text(60))
    batching = FixedSize(kind="fixed_size", pairs=1, rows=PaddedRows(width_multiple=8))
    feed = Feed(
        store, batching, seed=1, rank=1, world_size=2, micro_batches=1, device=torch.device("cpu")
    )
    batches = feed.batches()
    found = [next(batches).micro_batches[0] for _ in range(4)]
    batches.close()
    empty = [batch for batch in found if not batch.pairs]
    assert empty
    assert all(batch.source.shape == (1, 1) for batch in empty)
    assert all(batch.target_output.shape == (1, 1) for batch in empty)


def test_a_batch_of_the_right_widths_is_not_copied():
    store = store_of(*normal_text(60))
    (batch,) = taken(PaddedRows(), store, count=1)[0].micro_batches
    widths = batch.source.size(1), batch.target_input.size(1)
    assert batch.widened(*widths) is batch
    assert batch.widened(widths[0] + 1, widths[1]).source.size(1) == widths[0] + 1
