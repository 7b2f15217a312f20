"""Files written whole or not at all, and their checksums."""

import errno
import fcntl
import glob
import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name next to ``path``, renamed to it if the block ends without an error.

    Creates the folder if necessary. Removes the temporary file after an error, and those of killed
    processes of this host. Raises OSError if ``path`` is something else than a regular file, such
    as a device, which it would replace.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{path.name}.{platform.node()}"
    for left_over in path.parent.glob(f"{glob.escape(mark)}.*.tmp"):
        if _is_dead(left_over.name.split(".")[-2]):
            left_over.unlink(missing_ok=True)
    temporary = path.with_name(f"{mark}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        # safetensors lets nobody else read its files, whatever the umask. Some file systems refuse chmod.
        if temporary.stat().st_mode != mode:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException as error:
        # Writing to a full disk names no file, and nobody knows the temporary one.
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        temporary.unlink(missing_ok=True)
        raise


def _is_dead(process: str) -> bool:
    """Whether a process of this host has ended."""
    try:
        os.kill(int(process), 0)
    except PermissionError:  # of another user
        return False
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    return False


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` as UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(path: Path, strict: bool = False) -> Iterator[TextIO]:
    """Creates ``path`` if necessary, and lets one process at a time into the block. On a file system
    without locks, raises OSError if ``strict``, and lets all of them in otherwise."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            if strict:
                raise
        yield lock


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def text_of(path: Path) -> str:
    """The text of a small file without the last line break; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
