"""GPUs for a job: those it may see, and a lease on some of them."""

import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from transformer_core.parallel import nvml

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_POLL = 0.5


def visible_gpus() -> list[str]:
    """The GPUs that a process started from here sees, in its order, as UUIDs.

    Numbers in CUDA_VISIBLE_DEVICES count the devices by their place on the PCI bus, as NVML and
    nvidia-smi do. Other entries are taken as they stand, as CUDA does: like there, the first one
    that does not exist ends the list.
    """
    found = nvml.uuids()
    if _VARIABLE not in os.environ:
        return found
    visible: list[str] = []
    for entry in os.environ[_VARIABLE].split(","):
        name = entry.strip()
        if name.isdigit():
            if int(name) >= len(found):
                break
            visible.append(found[int(name)])
        elif name.startswith(("GPU-", "MIG-")):
            visible.append(name)
        else:
            break
    return visible


def lease(uuids: Sequence[str], count: int, folder: Path) -> dict[str, IO[str]]:
    """Leases ``count`` of the GPUs ``uuids``; returns each with the file that holds its lease.

    Waits until so many are free. A file per GPU in ``folder`` is locked; the kernel releases it
    with the last process that has it open, however that ends. Raises ValueError if there are fewer.
    """
    if len(uuids) < count:
        raise ValueError(f"{count} GPUs are asked for, and {len(uuids)} can be seen")
    while True:
        held: dict[str, IO[str]] = {}
        for uuid in uuids:
            file = _lock(folder / uuid) if len(held) < count else None
            if file is not None:
                held[uuid] = file
        if len(held) == count:
            return held
        # Two commands that hold one each and wait for another would deadlock.
        for file in held.values():
            file.close()
        time.sleep(_POLL)


def _lock(path: Path) -> IO[str] | None:
    """The locked file; null while another process has it. OSError for a link, and for a file of
    another user."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "a")
    if os.fstat(file.fileno()).st_uid != os.getuid():
        file.close()
        raise PermissionError(f"{path}: belongs to another user. Remedy: remove it")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def lease_folder() -> Path:
    """The private folder for leases below XDG_RUNTIME_DIR, or below the user's cache where that is
    unset or belongs to another user. Made if it is missing.

    Raises OSError where there is none: PermissionError for a folder of somebody else.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and _is_own(Path(runtime)) and os.access(runtime, os.W_OK):
        folder = Path(runtime)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        if not folder.is_absolute():
            raise FileNotFoundError(
                f"{folder}: set XDG_RUNTIME_DIR or HOME to a folder of your own"
            )
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("transformer_core", "leased-gpus"):
        folder /= name
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own(folder):
            raise PermissionError(
                f"{folder}: must be a folder that only this user may enter. Remedy: remove it, or "
                "set XDG_RUNTIME_DIR to a folder of your own"
            )
    return folder


def _is_own(folder: Path) -> bool:
    """Whether this is a folder, not a link, that only this user can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and private


_HELD: dict[str, IO[str]] = {}


def lease_here(count: int) -> None:
    """Until this process ends, it and those that it starts see ``count`` GPUs which nobody else
    who leased any sees. Does nothing without a GPU."""
    found = visible_gpus()
    if found and count:
        # With too few GPUs the job itself reports what it cannot do.
        _HELD.update(lease(found, min(count, len(found)), lease_folder()))
        # CUDA would number them by speed; NVML and this module number them by bus position.
        os.environ.update({_VARIABLE: ",".join(_HELD), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
