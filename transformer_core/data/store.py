"""The shards of a split as arrays over their memory maps."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.results import Shard, ShardManifest
from transformer_core.data.arrays import ranges
from transformer_core.data.files import CorpusError


class ShardError(CorpusError):
    """A manifest or a shard that is missing, cut off or changed."""

    def __init__(self, message: str, file: Path, manifest: Path) -> None:
        remedy = f"make it again: snakemake --cores all {manifest} --forcerun shards"
        super().__init__(message, file=file, remedy=remedy)


@dataclass(frozen=True)
class _Side:
    """One language: per shard the flat ids and [pairs + 1] offsets; over all shards the lengths."""

    ids: list[NDArray[Any]]
    offsets: list[NDArray[np.int64]]
    lengths: NDArray[np.int32]


class PairStore:
    """All pairs of a split, numbered from 0 in the order of the corpus.

    Token ids stay in the memory map, without begin and end, until they are gathered.
    """

    def __init__(self, manifest: ShardManifest, batches: list[pa.RecordBatch]) -> None:
        self.manifest = manifest
        self._first = np.cumsum([0, *[batch.num_rows for batch in batches[:-1]]])
        self._source = _side(batches, "source")
        self._target = _side(batches, "target")

    def __len__(self) -> int:
        return self.manifest.pairs

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """[pairs] source tokens of each pair."""
        return self._source.lengths

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """[pairs] target tokens of each pair."""
        return self._target.lengths

    def gather_source(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Source ids of the pairs ``rows`` in a row [sum(lengths)], and their lengths [rows]."""
        return self._gather(self._source, rows)

    def gather_target(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Target ids of the pairs ``rows`` in a row [sum(lengths)], and their lengths [rows]."""
        return self._gather(self._target, rows)

    def source_rows(self, rows: NDArray[np.int64] | list[int]) -> list[NDArray[Any]]:
        """Source ids of each of the pairs ``rows``."""
        return _split(*self.gather_source(np.asarray(rows, np.int64)))

    def target_rows(self, rows: NDArray[np.int64] | list[int]) -> list[NDArray[Any]]:
        """Target ids of each of the pairs ``rows``."""
        return _split(*self.gather_target(np.asarray(rows, np.int64)))

    def _gather(
        self, side: _Side, rows: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int32]]:
        lengths = side.lengths[rows]
        places = np.cumsum(lengths, dtype=np.int64) - lengths
        flat = np.empty(int(lengths.sum()), self.manifest.id_type)
        shards = np.searchsorted(self._first, rows, side="right") - 1
        for shard in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == shard)
            starts = side.offsets[shard][rows[mine] - self._first[shard]]
            flat[ranges(places[mine], lengths[mine])] = side.ids[shard][
                ranges(starts, lengths[mine])
            ]
        return flat, lengths


def open_shards(manifest_path: str | Path, verify: bool = False) -> PairStore:
    """Memory-map the shards of a manifest, after checking their sizes.

    Args:
        manifest_path: manifest.json; the shards lie beside it.
        verify: also compare the SHA-256 of every shard, which reads all of it.

    Raises:
        ShardError: a file is missing, cut off or changed.
    """
    path = Path(manifest_path)
    try:
        manifest = ShardManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ShardError(f"cannot be read ({error})", path, path) from None
    return PairStore(manifest, [_open(path, manifest, shard, verify) for shard in manifest.shards])


def _open(path: Path, manifest: ShardManifest, shard: Shard, verify: bool) -> pa.RecordBatch:
    file = path.parent / shard.file
    try:
        size = file.stat().st_size
        if size != shard.bytes:
            raise ShardError(f"has {size} bytes instead of {shard.bytes}", file, path)
        if verify:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != shard.sha256:
                message = f"has changed: SHA-256 {found} instead of {shard.sha256}"
                raise ShardError(message, file, path)
        batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise ShardError(f"cannot be read ({error})", file, path) from None
    kind = pa.large_list(pa.from_numpy_dtype(np.dtype(manifest.id_type)))
    if batch.num_rows != shard.pairs or batch.schema.types != [kind, kind]:
        message = f"holds {batch.num_rows} pairs, not {shard.pairs} of {manifest.id_type}"
        raise ShardError(message, file, path)
    return batch


def _side(batches: list[pa.RecordBatch], column: str) -> _Side:
    columns = [batch.column(column) for batch in batches]
    offsets = [column.offsets.to_numpy() for column in columns]
    return _Side(
        ids=[column.values.to_numpy(zero_copy_only=True) for column in columns],
        offsets=offsets,
        lengths=np.concatenate([np.diff(limits) for limits in offsets]).astype(np.int32),
    )


def _split(flat: NDArray[Any], lengths: NDArray[np.int32]) -> list[NDArray[Any]]:
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
