from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from length_stores import normal_text, store_of
from pair_files import make_store, steady

from schemas.config.batching import FixedSize, PackedRows, PaddedRows
from transformer_core.data.arrays import Ragged
from transformer_core.data.batching.collate import collate_packed
from transformer_core.data.batching.epoch_plan import plan_epoch
from transformer_core.data.batching.rows import WindowRows, pack
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD

groups = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=20),
    min_size=1,
    max_size=8,
)


def packed(groups, tokens):
    pairs = np.array([pair for group in groups for pair in group], np.int64).reshape(-1, 2)
    starts = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    return pairs, starts, pack(pairs[:, 0], pairs[:, 1], starts, tokens)


@steady
@given(groups=groups, tokens=st.integers(1, 90))
def test_pairs_fill_rows_from_the_left_without_gap_or_overlap(groups, tokens):
    pairs, starts, packing = packed(groups, tokens)
    for group, (begin, end) in enumerate(pairwise(starts.tolist())):
        widths = [[0, 0]]
        for row in range(packing.rows[group]):
            mine = begin + np.flatnonzero(packing.row[begin:end] == row)
            assert len(mine), "no row is empty"
            for side, column in enumerate((packing.source_column, packing.target_column)):
                order = mine[np.argsort(column[mine])]
                assert column[order[0]] == 0
                ends = column[order] + pairs[order, side]
                assert column[order[1:]].tolist() == ends[:-1].tolist()
            order = [mine[np.argsort(c[mine])].tolist() for c in columns(packing)]
            assert order[0] == order[1], "source and target stand in the same order"
            widths.append(pairs[mine].sum(axis=0).tolist())
        assert [packing.source_width[group], packing.target_width[group]] == [
            max(width) for width in zip(*widths, strict=True)
        ]
        assert set(packing.row[begin:end].tolist()) == set(range(packing.rows[group]))


def columns(packing):
    return packing.source_column, packing.target_column


@steady
@given(groups=groups, tokens=st.integers(1, 90))
def test_as_many_rows_as_the_tokens_ask_for(groups, tokens):
    pairs, starts, packing = packed(groups, tokens)
    for group, (begin, end) in enumerate(pairwise(starts.tolist())):
        mine = pairs[begin:end]
        length = max(tokens, mine.max(initial=0))
        assert packing.rows[group] == -(-mine.sum(axis=0).max() // length)


@steady
@given(groups=groups, tokens=st.integers(1, 90))
def test_groups_do_not_depend_on_each_other(groups, tokens):
    _, starts, together = packed(groups, tokens)
    for group, (begin, end) in enumerate(pairwise(starts.tolist())):
        _, _, alone = packed([groups[group]], tokens)
        assert together.row[begin:end].tolist() == alone.row.tolist()
        for mine, own in zip(columns(together), columns(alone), strict=True):
            assert mine[begin:end].tolist() == own.tolist()


def test_rows_are_balanced():
    """The longest with the shortest, not one after the other."""
    _, _, packing = packed([[(9, 9), (8, 8), (2, 2), (1, 1)]], 10)
    assert packing.rows.tolist() == [2]
    assert packing.row.tolist() == [0, 1, 1, 0]
    assert packing.source_width.tolist() == [10]


def test_packing_takes_the_padding_out_of_random_batches():
    sources, targets = normal_text(5_000)
    store = store_of(sources, targets)
    share = {}
    for rows in (PaddedRows(), PackedRows(kind="packed"), PackedRows(kind="packed", tokens=256)):
        batching = FixedSize(kind="fixed_size", rows=rows)
        (window,) = plan_epoch(store, batching, 1, 0)
        made = WindowRows(store, window, 1, rows)
        share[rows] = 1 - sum(made.tokens) / sum(made.padded_tokens)
        batches = [made.batch(index, 0) for index in range(len(window))]
        assert [batch.padded_tokens for batch in batches] == made.padded_tokens
        assert list(map(tokens_of, batches)) == made.tokens
        assert [batch.pairs for batch in batches] == made.pairs
        labels = [int((batch.target_output != PAD).sum()) for batch in batches]
        assert labels == made.target_tokens
    padded, short, long = share.values()
    assert padded > 0.4
    assert long < short < 0.15


def tokens_of(batch):
    return int((batch.source != PAD).sum() + (batch.target_output != PAD).sum())


def ragged(*rows):
    return Ragged.join(
        [np.array(row) for row in rows], np.array([len(row) for row in rows], np.int32)
    )


def test_packed_rows_hold_the_pairs_one_after_the_other():
    batch = collate_packed(
        ragged([11, 12], [21], [31, 32, 33]),
        ragged([15], [25, 26, 27], []),
        row=np.array([0, 1, 0]),
        columns=(np.array([0, 0, 3]), np.array([0, 0, 2])),
        shape=(2, 8, 4),
    )
    assert batch.source.tolist() == [
        [11, 12, EOS, 31, 32, 33, EOS, PAD],
        [21, EOS, PAD, PAD, PAD, PAD, PAD, PAD],
    ]
    assert batch.target_input.tolist() == [[BOS, 15, BOS, PAD], [BOS, 25, 26, 27]]
    assert batch.target_output.tolist() == [[15, EOS, EOS, PAD], [25, 26, 27, EOS]]
    assert (batch.pairs, batch.padded_tokens) == (3, 24)
    assert batch.source.dtype == torch.int64


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_packed_and_padded_parts_hold_the_same_pairs(tmp_path, parts):
    store = make_store(tmp_path)
    batching = FixedSize(kind="fixed_size", pairs=20)
    (window,) = plan_epoch(store, batching, 1, 0)
    padded = WindowRows(store, window, parts, PaddedRows())
    packed = WindowRows(store, window, parts, PackedRows(kind="packed", tokens=50))
    for index in range(len(window)):
        for part in range(parts):
            one, other = padded.batch(index, part), packed.batch(index, part)
            assert one.pairs == other.pairs
            for name in ("source", "target_input", "target_output"):
                ids = [getattr(batch, name)[getattr(batch, name) != PAD] for batch in (one, other)]
                assert sorted(ids[0].tolist()) == sorted(ids[1].tolist())


@pytest.mark.parametrize("token", [PAD, BOS, EOS])
def test_a_special_token_in_a_sentence_is_refused(token):
    store = store_of([3, 3], [3, 3])
    store.target.ids[0] = np.array([9, 9, 9, 9, token, 9], np.uint16)
    (window,) = plan_epoch(store, FixedSize(kind="fixed_size"), 1, 0)
    WindowRows(store, window, 1, PaddedRows())
    with pytest.raises(ValueError, match="a target sentence holds the special token"):
        WindowRows(store, window, 1, PackedRows(kind="packed"))
