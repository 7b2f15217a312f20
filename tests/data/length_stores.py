"""Stores of sentences of given lengths, for the tests of batches."""

import numpy as np
import pyarrow as pa

from schemas.results import LengthHistogram, ShardManifest
from transformer_core.data.sharding.shard_store import PairStore

FIRST_ID = 4
"""Ids below are special."""


def store_of(sources, targets, per_shard=1_000_000):
    """A store in memory whose pairs have these lengths, and ids that tell them apart."""
    sources, targets = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    pairs = len(sources)
    batches = []
    for start in range(0, pairs, per_shard):
        columns = []
        for lengths in (sources, targets):
            part = lengths[start : start + per_shard]
            limits = np.concatenate([[0], np.cumsum(part)])
            ids = np.repeat(np.arange(start, start + len(part)) % 60_000 + FIRST_ID, part)
            columns.append(pa.LargeListArray.from_arrays(limits, pa.array(ids.astype(np.uint16))))
        batches.append(pa.record_batch(columns, names=["source", "target"]))
    manifest = ShardManifest(
        corpus="lengths",
        split="train",
        pairs=pairs,
        source_tokens=int(sources.sum()),
        target_tokens=int(targets.sum()),
        skipped_too_long=0,
        examples=[],
        id_type="uint16",
        vocabulary=60_100,
        tokenizer_sha256="0" * 64,
        lengths=LengthHistogram(unit="tokens", source={}, target={}),
        seconds=0.0,
        shards=[],
    )
    return PairStore(manifest, batches)


def normal_text(pairs, seed=0):
    """Lengths like those of sentences: spread out, and similar on both sides."""
    random = np.random.default_rng(seed)
    sources = np.clip(random.lognormal(2.8, 0.5, pairs), 1, 128).astype(np.int32)
    targets = np.clip(sources * random.normal(1.05, 0.2, pairs), 1, 128).astype(np.int32)
    return sources, targets
