"""The manifest of a split: what its shards hold, and what was left out."""

import shutil
from collections.abc import Collection
from pathlib import Path

from schemas.config.corpus import Filter
from schemas.results.data import LengthHistogram, Shard, ShardManifest
from transformer_core.common.seals import write_sealed
from transformer_core.data.corpus.corpus_error import CorpusError
from transformer_core.data.corpus.length_histogram import add_counts, count_lengths
from transformer_core.data.tokenizing.encoding import Encoded

EXAMPLES = 10
"""Pairs left out that a manifest shows."""
PROGRESS = "progress.json"
"""File beside the shards with what is done, until there is a manifest."""


def with_shard(
    manifest: ShardManifest, shard: Shard, source: Encoded, target: Encoded
) -> ShardManifest:
    """The manifest with one more shard, of ``source`` and ``target``."""
    lengths = manifest.lengths
    return manifest.model_copy(
        update={
            "pairs": manifest.pairs + shard.pairs,
            "source_tokens": manifest.source_tokens + shard.source_tokens,
            "target_tokens": manifest.target_tokens + shard.target_tokens,
            "lengths": LengthHistogram(
                unit="tokens",
                source=add_counts([lengths.source, count_lengths(source.lengths)]),
                target=add_counts([lengths.target, count_lengths(target.lengths)]),
            ),
            "shards": [*manifest.shards, shard],
        }
    )


def check_any_left(manifest: ShardManifest, pairs: Path, rules: Filter) -> None:
    """Raise CorpusError if the filter left no pair of a split."""
    if not manifest.pairs:
        raise CorpusError(
            f"no pair is left: {manifest.skipped_too_long} have more than {rules.max_tokens} "
            "tokens on a side",
            file=pairs,
            remedy="raise filter.max_tokens",
        )


def write_manifest(manifest: ShardManifest, path: Path, parts: Collection[Path] = ()) -> None:
    """Write a manifest, last of all.

    What an earlier division of the split left goes: shards beside the manifest that it does not
    name, and folders of parts that are not among ``parts``.
    """
    named = {path.parent / shard.file for shard in manifest.shards}
    for old in path.parent.glob("shard-*.arrow"):
        if old not in named:
            old.unlink()
    for folder in path.parent.glob("part-*"):
        if folder not in parts:
            shutil.rmtree(folder)
    write_sealed(path, manifest.model_dump_json(indent=2) + "\n")
    (path.parent / PROGRESS).unlink(missing_ok=True)
