"""Batches of pairs to the bit as they were before there were rows of texts."""

import hashlib
from contextlib import closing
from itertools import islice

import pytest
import torch
from length_stores import normal_text, store_of

from schemas.config.batching import FixedSize, PackedRows, PaddedRows, TokenBudget
from transformer_core.data.batching.feeding import Feed, evaluation_batches

PADDED, PACKED = PaddedRows(), PackedRows(kind="packed", tokens=64)
BEFORE = {
    "budget": (TokenBudget(tokens=800, rows=PADDED), "da507323556f34bc"),
    "packed": (TokenBudget(tokens=800, rows=PACKED), "630d48f8a0c292e9"),
    "fixed": (FixedSize(kind="fixed_size", pairs=16, rows=PADDED), "81b89498f08a78f2"),
}
"""Batching, and the digest of what it gave."""


def digest(batches, counts):
    found = hashlib.sha256(repr(counts).encode())
    for batch in batches:
        for tensor in (batch.source, batch.target_input, batch.target_output):
            found.update(repr(tuple(tensor.shape)).encode())
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", BEFORE)
def test_training_batches(name):
    batching, expected = BEFORE[name]
    feed = Feed(store_of(*normal_text(300)), batching, 1, 1, 2, 2, torch.device("cpu"))
    with closing(feed.batches()) as batches:
        first = list(islice(batches, 30))
    counts = [(b.pairs, b.tokens, b.target_tokens, b.padded_tokens) for b in first]
    micro = [micro for batch in first for micro in batch.micro_batches]
    assert digest(micro, counts) == expected


def test_validation_batches():
    store = store_of(*normal_text(300))
    rows, batches = zip(*evaluation_batches(store, tokens_per_batch=500), strict=True)
    assert digest(batches, [row.tolist() for row in rows]) == "7271acb298002810"
