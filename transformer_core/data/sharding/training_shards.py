"""The part of a corpus that a training reads: the shards of two splits, and the vocabulary."""

from dataclasses import dataclass
from pathlib import Path

from transformer_core.data.sharding.local_copies import open_nearest
from transformer_core.data.sharding.shard_store import PairStore, open_shards, read_manifest


@dataclass(frozen=True)
class TrainingShards:
    """A corpus that is open for training."""

    vocabulary: int
    """Token ids, special tokens included."""
    train: PairStore
    validation: PairStore

    @property
    def stores(self) -> tuple[PairStore, PairStore]:
        """The splits for training and validation."""
        return self.train, self.validation


def open_training_shards(data: Path, nearest: bool = True) -> TrainingShards:
    """The shards below ``data``, results/data/<corpus>: the ``nearest`` copy of them, if there are
    several. ShardError if they are missing or damaged."""
    train, validation = (data / "shards" / s / "manifest.json" for s in ("train", "validation"))
    opened = open_nearest if nearest else open_shards
    return TrainingShards(read_manifest(train).vocabulary, opened(train), opened(validation))
