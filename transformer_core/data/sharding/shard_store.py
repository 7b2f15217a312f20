"""Reads the shards of a split: the manifest that describes them, and arrays in their memory maps.

If the shared file system is slow, set ``LOCAL_SHARDS`` in the environment to a folder on a disk of
this host. The first process on the host then copies the shards there while the others wait, compares
them with the checksums of their manifest, and only then gives the copy its final name. The name
depends on the contents of the manifest, so a copy is never mistaken for another. Old copies are the
user's to remove.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.config.data import Filter
from schemas.errors import ConfigError
from schemas.results.data import LengthHistogram, Shard, ShardManifest
from transformer_core.common import digests
from transformer_core.common.digests import write_result
from transformer_core.common.endings import remake, unreadable
from transformer_core.common.files import locked, sha256
from transformer_core.common.records import read_record
from transformer_core.data.arrays import Integers, Ragged, count_lengths, ranges
from transformer_core.data.corpus.rows import CorpusError

PROGRESS = "progress.json"  # file next to the shards that records finished work until the manifest
VARIABLE = "LOCAL_SHARDS"
COPY_MARK = ".copy"  # file next to the manifest of copied shards; it names the original


def check_any_left(manifest: ShardManifest, pairs: Path, rules: Filter) -> None:
    """Raises CorpusError if the filter kept no pair of a split."""
    if not manifest.pairs:
        raise CorpusError(
            f"no pair is left: {manifest.skipped_too_long} have more than {rules.max_tokens} "
            "tokens on a side",
            file=pairs,
            remedy="raise filter.max_tokens",
        )


def write_manifest(manifest: ShardManifest, path: Path, parts: Collection[Path] = ()) -> None:
    """Writes a manifest, after the shards that it names.

    Deletes leftovers of an earlier division of the split: shards that the manifest does not name,
    and folders of parts that are not among ``parts``.
    """
    named = {path.parent / shard.file for shard in manifest.shards}
    for old in path.parent.glob("shard-*.arrow"):
        if old not in named:
            old.unlink()
    for folder in path.parent.glob("part-*"):
        if folder not in parts:
            shutil.rmtree(folder)
    write_result(path, manifest.model_dump_json(indent=2) + "\n")
    (path.parent / PROGRESS).unlink(missing_ok=True)


class ShardError(CorpusError):
    """Raised for a manifest or a shard that is missing, truncated or changed."""

    def __init__(self, message: str, file: Path, manifest: Path, remedy: str | None = None) -> None:
        if manifest.with_name(COPY_MARK).exists():
            remedy = f"remove {manifest.parent}: it is a copy that the next run makes again"
        # The job that made a shard also made the manifest next to it, perhaps of a part only.
        remedy = remedy or remake(manifest, file.with_name("manifest.json"))
        super().__init__(message, file=file, remedy=remedy)


class Side:
    """One language of a split: token ids in the memory maps of the shards, without begin and end.

    ``batches`` are the record batches of the shards, in order. We call ``check`` with the number of
    a shard before we read any of its sentences.
    """

    def __init__(
        self, column: str, batches: list[pa.RecordBatch], check: Callable[[int], None]
    ) -> None:
        self._check = check
        columns = [batch.column(column) for batch in batches]
        # to_numpy would import pandas if installed: a third of a second in every process.
        self.ids = [np.from_dlpack(column.values) for column in columns]
        """The ids of all sentences of each shard, in order."""
        self.offsets = [np.from_dlpack(column.offsets) for column in columns]
        """[pairs + 1] for each shard: the limits of its sentences."""
        self._first = np.cumsum([0, *(len(column) for column in columns)])

    def lengths(self, spans: Integers) -> NDArray[np.int32]:
        """Number of tokens of the sentences start … stop - 1 of each of ``spans`` [n, 2]."""
        found = [np.diff(self.offsets[shard][a : b + 1]) for shard, a, b in self._pieces(spans)]
        return np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)

    def read(self, spans: Integers) -> Ragged:
        """Copies the sentences of ``spans``, in a few long reads."""
        chunks = []
        for shard, a, b in self._pieces(spans):
            offsets = self.offsets[shard]
            chunks.append(self.ids[shard][offsets[a] : offsets[b]])
        return Ragged.join(chunks, self.lengths(spans))

    def gather(self, rows: Integers) -> Ragged:
        """Copies the sentences ``rows``, in any order."""
        shards = np.searchsorted(self._first, rows, side="right") - 1
        order = np.argsort(shards, kind="stable")
        chunks, lengths = [], [np.empty(0, np.int32)]
        for shard in np.unique(shards).tolist():
            local = rows[order[shards[order] == shard]] - self._first[shard]
            self._check(shard)
            starts = self.offsets[shard][local]
            lengths.append((self.offsets[shard][local + 1] - starts).astype(np.int32))
            chunks.append(self.ids[shard][ranges(starts, lengths[-1])])
        return Ragged.join(chunks, np.concatenate(lengths)).take(np.argsort(order))

    def _pieces(self, spans: Integers) -> Iterator[tuple[int, int, int]]:
        """Divides ``spans`` by shard: yields each shard's number with start and stop within it."""
        for start, stop in spans.tolist():
            shard = int(np.searchsorted(self._first, start, side="right")) - 1
            while start < stop:
                first, end = int(self._first[shard]), min(stop, int(self._first[shard + 1]))
                if first < end:
                    self._check(shard)
                yield shard, start - first, end - first
                start, shard = end, shard + 1


class PairStore:
    """All pairs of a split, numbered from 0 in the order of the corpus.

    We read pairs only on demand; opening a split only reads the headers of its shards.
    """

    def __init__(
        self,
        manifest: ShardManifest,
        batches: list[pa.RecordBatch],
        check: Callable[[int], None] = lambda shard: None,
    ) -> None:
        self.manifest = manifest
        self.batches = batches
        """The record batch of each shard, in its memory map."""
        self.source = Side("source", batches, check)
        self.target = Side("target", batches, check)
        self.texts = manifest.texts is not None
        """Whether the pairs are rows of texts, which have no source and contain their EOS tokens."""
        self.ends = 0 if self.texts else 1
        """EOS tokens that a batch adds to each side of a pair."""

    def __len__(self) -> int:
        return self.manifest.pairs

    def source_rows(self, rows: Integers | list[int]) -> list[NDArray[Any]]:
        """Source ids of each of the pairs ``rows``."""
        return _split(self.source.gather(np.asarray(rows, np.int64)))

    def target_rows(self, rows: Integers | list[int]) -> list[NDArray[Any]]:
        """Target ids of each of the pairs ``rows``."""
        return _split(self.target.gather(np.asarray(rows, np.int64)))


def first_pairs(store: PairStore, count: int) -> PairStore:
    """The first ``count`` pairs of ``store``, or all of its first shard if that has fewer."""
    batch = store.batches[0].slice(0, count)
    few = PairStore(store.manifest, [batch])
    every = np.array([[0, len(batch)]])
    lengths = LengthHistogram(
        unit="tokens",
        source=count_lengths(few.source.lengths(every)),
        target=count_lengths(few.target.lengths(every)),
    )
    few.manifest = store.manifest.model_copy(update={"pairs": len(batch), "lengths": lengths})
    return few


def open_shards(manifest_path: str | Path) -> PairStore:
    """Memory-maps the shards of a manifest, after checking their sizes.

    The first process of a run on a host compares the digest of a shard when it first reads it; the
    others read the same shards. Raises ShardError, now or then, if a file is missing, truncated or
    changed.
    """
    path = Path(manifest_path)
    manifest = read_manifest(path)
    batches = [_open(path, manifest, shard) for shard in manifest.shards]
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    unread = set(range(len(batches)) if first else ())

    def check(shard: int) -> None:
        if shard in unread:
            check_shard(path, manifest.shards[shard], quick=True)
            unread.discard(shard)

    return PairStore(manifest, batches, check)


def read_manifest(path: Path) -> ShardManifest:
    """Reads the manifest of a split; ShardError if it is missing or damaged."""
    try:
        return read_record(path, ShardManifest)
    except ConfigError as error:
        raise ShardError(error.problems[0].message, path, path) from None


def check_shard(manifest: Path, shard: Shard, quick: bool = False) -> None:
    """Reads a whole shard and compares its size and SHA-256; ShardError if they differ.

    ``quick`` compares a digest that is as fast as memory, except for old shards without one.
    """
    file = manifest.parent / shard.file
    name, expected, of = "SHA-256", shard.sha256, sha256
    if quick and shard.xxh3:
        name, expected, of = "XXH3", shard.xxh3, digests.digest
    try:
        _check_size(manifest, shard)
        found = of(file)
    except OSError as error:
        raise ShardError(unreadable(error), file, manifest) from None
    if found != expected:
        message = f"has changed: {name} {found} instead of {expected}"
        raise ShardError(message, file, manifest)


def _check_size(manifest: Path, shard: Shard) -> None:
    file = manifest.parent / shard.file
    if (size := file.stat().st_size) != shard.bytes:
        raise ShardError(f"has {size} bytes instead of {shard.bytes}", file, manifest)


def _open(path: Path, manifest: ShardManifest, shard: Shard) -> pa.RecordBatch:
    file = path.parent / shard.file
    try:
        _check_size(path, shard)
        batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
        batch.validate()
    except (OSError, pa.ArrowException) as error:
        raise ShardError(unreadable(error), file, path) from None
    kind = pa.large_list(pa.from_numpy_dtype(np.dtype(manifest.id_type)))
    schema = pa.schema({"source": kind, "target": kind})
    if batch.num_rows != shard.pairs or not batch.schema.equals(schema):
        message = f"holds {batch.num_rows} pairs, not {shard.pairs} of {manifest.id_type}"
        raise ShardError(message, file, path)
    tokens = (shard.source_tokens, shard.target_tokens)
    if any(
        column.null_count or column.values.null_count or len(column.values) != count
        for column, count in zip(batch.columns, tokens, strict=True)
    ):
        raise ShardError("does not hold the tokens that its manifest lists", file, path)
    return batch


def _split(rows: Ragged) -> list[NDArray[Any]]:
    return np.split(rows.flat(), np.cumsum(rows.lengths)[:-1]) if len(rows) else []


def open_training_shards(data: Path, nearest: bool = True) -> tuple[PairStore, PairStore]:
    """Opens the splits train and validation below ``data``, results/data/<corpus>; with ``nearest``,
    their copy on this host if the environment asks for one. ShardError if they are missing or
    damaged."""
    train, validation = (data / "shards" / s / "manifest.json" for s in ("train", "validation"))
    opened = open_nearest if nearest else open_shards
    return opened(train), opened(validation)


def open_nearest(manifest: Path) -> PairStore:
    """Opens the copy on this host if the environment asks for one, otherwise the shards."""
    folder = os.environ.get(VARIABLE)
    return open_shards(copy_to(Path(folder), manifest) if folder else manifest)


def copy_to(folder: Path, manifest: Path) -> Path:
    """Returns the manifest of a complete copy of the shards in ``folder``; copies them if needed.

    Raises ShardError if the shards are damaged or cannot be copied.
    """
    shards = read_manifest(manifest).shards
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16]
    place = folder / f"{manifest.parent.name}-{digest}"
    copy = place / manifest.name
    if copy.exists():
        return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{place.name}.lock", strict=True):
            if not copy.exists():
                _copy(manifest, shards, folder / f".{place.name}.partial", place)
    except OSError as error:
        remedy = f"free space in {folder}, or unset {VARIABLE} to read the shards where they are"
        message = f"cannot be copied to {folder} ({error})"
        raise ShardError(message, manifest, manifest, remedy) from None
    return copy


def _copy(manifest: Path, shards: list[Shard], partial: Path, place: Path) -> None:
    # A leftover of a killed process, since only the holder of the lock writes here.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for shard in shards:
            copied = partial / shard.file
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(manifest.parent / shard.file, copied)
            try:
                check_shard(partial / manifest.name, shard, quick=True)
            except ShardError:
                # If the original is damaged too, the error must name it.
                check_shard(manifest, shard)
                raise
        shutil.copy2(manifest, partial)
        (partial / COPY_MARK).write_text(f"{manifest.resolve()}\n", encoding="utf-8")
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
