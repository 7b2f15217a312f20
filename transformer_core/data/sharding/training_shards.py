"""The part of a corpus that a training reads: the shards of two splits.

Shards on a shared file system that is slow or far away may be copied to a disk of this host, whose
folder ``LOCAL_SHARDS`` in the environment names. Of all processes on a host the first one copies, and
the others wait for it. A copy is compared with the checksums of its manifest, and has its final name
only when it is whole. It is named after the contents of the manifest, so that other shards never take
its place; old ones are left for the user to remove.
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
    """The splits train and validation below ``data``, results/data/<corpus>: the ``nearest`` copy of
    them, if there are several. ShardError if they are missing or damaged."""
    train, validation = (data / "shards" / s / "manifest.json" for s in ("train", "validation"))
    opened = open_nearest if nearest else open_shards
    return opened(train), opened(validation)


def open_nearest(manifest: Path) -> PairStore:
    """:func:`open_shards` of the copy on this host, if the environment asks for one."""
    folder = os.environ.get(VARIABLE)
    return open_shards(copy_to(Path(folder), manifest) if folder else manifest)


def copy_to(folder: Path, manifest: Path) -> Path:
    """The manifest of a whole copy of the shards of ``manifest`` in ``folder``, made if needed.

    ShardError if the shards are damaged, or cannot be copied.
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
        remedy = f"make room in {folder}, or unset {VARIABLE} to read the shards where they are"
        message = f"cannot be copied to {folder} ({error})"
        raise ShardError(message, manifest, manifest, remedy) from None
    return copy


def _copy(manifest: Path, partial: Path, place: Path) -> None:
    # Left over by a killed process: only the holder of the lock writes here.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for shard in read_manifest(manifest).shards:
            copied = partial / shard.file
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(manifest.parent / shard.file, copied)
            try:
                check_shard(partial / manifest.name, shard, quick=True)
            except ShardError:
                # If the original is damaged, the original must be repaired.
                check_shard(manifest, shard)
                raise
        shutil.copy2(manifest, partial)
        (partial / COPY_MARK).write_text(f"{manifest.resolve()}\n", encoding="utf-8")
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
