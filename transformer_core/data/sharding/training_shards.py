"""Opens the shards that a training reads: those of the train and the validation split.

If the shared file system is slow, set ``LOCAL_SHARDS`` in the environment to a folder on a disk of
this host. The first process on the host then copies the shards there while the others wait, compares
them with the checksums of their manifest, and only then gives the copy its final name. The name
depends on the contents of the manifest, so a copy is never mistaken for another. Old copies are the
user's to remove.
"""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from transformer_core.data.sharding.shard_store import (
    COPY_MARK,
    PairStore,
    ShardError,
    check_shard,
    open_shards,
    read_manifest,
)

VARIABLE = "LOCAL_SHARDS"


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
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16]
    place = folder / f"{manifest.parent.name}-{digest}"
    copy = place / manifest.name
    if copy.exists():
        return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{place.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not copy.exists():
                _copy(manifest, folder / f".{place.name}.partial", place)
    except OSError as error:
        remedy = f"free space in {folder}, or unset {VARIABLE} to read the shards where they are"
        message = f"cannot be copied to {folder} ({error})"
        raise ShardError(message, manifest, manifest, remedy) from None
    return copy


def _copy(manifest: Path, partial: Path, place: Path) -> None:
    # A leftover of a killed process, since only the holder of the lock writes here.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for shard in read_manifest(manifest).shards:
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
