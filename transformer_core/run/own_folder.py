"""A private folder of the user, for locks and sockets that the user's processes on a host share."""

import os
import stat
from pathlib import Path

CHANGES_NO_RESULT = True  # it chooses where locks and sockets lie

_NAME = "transformer_core"


def own_folder(*names: str) -> Path:
    """The private folder ``names`` below XDG_RUNTIME_DIR, or below the user's cache where that is
    unset or belongs to another user. Made if it is missing.

    Raises OSError where there is none: PermissionError for a folder of somebody else.
    """
    folder = _parent()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_NAME, *names):
        folder /= name
        folder.mkdir(mode=0o700, exist_ok=True)
        if not is_own(folder):
            raise PermissionError(
                f"{folder}: must be a folder that only this user may enter. Remedy: remove it, or "
                "set XDG_RUNTIME_DIR to a folder of your own"
            )
    return folder


def is_own(folder: Path) -> bool:
    """Whether this is a folder, not a link, that only this user can enter."""
    found = folder.lstat()
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and private


def open_own(file: Path) -> int:
    """A descriptor of this user's file, made if it is missing; OSError if it is a link or another
    user's."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(f"{file}: belongs to another user. Remedy: remove it")
    return descriptor


def _parent() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        runtime = Path(given)
        if runtime.is_dir() and is_own(runtime) and os.access(runtime, os.W_OK):
            return runtime
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    if not cache.is_absolute():
        raise FileNotFoundError(f"{cache}: set XDG_RUNTIME_DIR or HOME to a folder of your own")
    return cache
