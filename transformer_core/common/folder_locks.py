"""Locks that give a job's folder to one process at a time.

A job keeps running when its Snakemake is killed, and the same command starts it a second time.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from schemas.errors import Refusal

_LOCK = ".lock"


class FolderInUse(ValueError):
    """Another process holds the lock of a folder."""


@contextmanager
def exclusive(folder: Path, waits: bool = True) -> Iterator[None]:
    """Locks ``folder`` for this process. While another process holds it, waits or raises FolderInUse."""
    while (lock := _locked(folder, waits)) is None:
        pass
    with lock:
        lock.truncate(0)
        with suppress(OSError):  # a full disk: whatever the job writes next says where
            os.write(lock.fileno(), str(os.getpid()).encode())
        yield


@contextmanager
def workplace(folder: Path, stays: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Like :func:`exclusive`, for temporary files: removes ``folder`` at the end. After an error, or
    if it ``stays``, it has everything that the next attempt can use."""
    with exclusive(folder):
        yield
        if stays():
            return
        # Locked, with the lock removed last: waiting processes must not begin before the end.
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
        (folder / _LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # another process already uses it
            folder.rmdir()


def _locked(folder: Path, waits: bool) -> IO[str] | None:
    """The lock of ``folder``; None if it was removed with its folder meanwhile."""
    path = folder / _LOCK
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir()
    try:
        lock = path.open("a+")
    except FileNotFoundError:
        if folder.is_symlink():  # to a missing folder
            raise
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        said = f"{folder} is in use by process {lock.read().strip()}"
        if not waits:
            lock.close()
            raise FolderInUse(said) from None
        # Not to the log, which is usually the other's, too.
        print(f"{said}: waiting for it", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        lock.close()
        raise Refusal(
            f"{path} cannot be locked ({error.strerror}), but locks keep two processes from working "
            "in this folder; remedy: mount its file system with locks (flock), or work on another"
        ) from None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return lock
    lock.close()
    return None
