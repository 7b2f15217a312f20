"""Leases on GPUs for a job."""

import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from schemas.config.run_spec import RunSpec
from schemas.errors import Refusal
from transformer_core.parallel import nvml
from transformer_core.parallel.nvml import VISIBLE, visible_gpus
from transformer_core.study.reservations import devices_on_a_host

_POLL = 0.5


def forget_those_of_another_host() -> None:
    """Shows all GPUs of this host if CUDA_VISIBLE_DEVICES has only UUIDs of others. srun hands on the
    variables of the first host, where the job has leased its GPUs, unless Slurm itself assigns some."""
    here, given = nvml.uuids(), os.environ.get(VISIBLE, "").split(",")
    if here and all(
        name.startswith("GPU-") and not any(uuid.startswith(name) for uuid in here)
        for name in map(str.strip, given)
    ):
        del os.environ[VISIBLE]


def gpus_of(spec: RunSpec) -> list[str]:
    """The first visible GPUs, which the processes of a run on this host use."""
    return visible_gpus()[: devices_on_a_host(spec.machine)]


def lease(uuids: Sequence[str], count: int, folder: Path) -> dict[str, IO[str]]:
    """Leases ``count`` of the GPUs ``uuids``; returns each with the file that holds its lease.

    Waits until enough are free. Locks a file in ``folder`` for each GPU; the kernel releases it when
    the last process that has it open ends in any way. Raises ValueError if there are too few GPUs.
    """
    if len(uuids) < count:
        raise ValueError(f"{count} GPUs are requested, but only {len(uuids)} are visible")
    while True:
        held: dict[str, IO[str]] = {}
        for uuid in uuids:
            # The older names of slices have slashes: MIG-GPU-<UUID>/<instance>/<instance>.
            file = _lock(folder / uuid.replace("/", "+")) if len(held) < count else None
            if file is not None:
                held[uuid] = file
        if len(held) == count:
            return held
        # Two commands that each hold one GPU and wait for another would deadlock.
        for file in held.values():
            file.close()
        time.sleep(_POLL)


def _lock(path: Path) -> IO[str] | None:
    """The locked file; None while another process holds it. OSError if it is a link, or on a file
    system without locks; Refusal if it belongs to another user."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "a")
    if os.fstat(file.fileno()).st_uid != os.getuid():
        file.close()
        raise Refusal(f"{path}: belongs to another user\n    remedy: remove it")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def lease_folder() -> Path:
    """The private folder for leases, created if missing: below XDG_RUNTIME_DIR, or below the user's
    cache if that is unset or not private to this user.

    Raises Refusal if neither is possible, or others may enter the folder.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and _is_own(Path(runtime)) and os.access(runtime, os.W_OK):
        folder = Path(runtime)
    else:
        # pathlib would raise an error of its own for a user without a home.
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
        if not folder.is_absolute():
            raise Refusal(f"{folder}: set XDG_RUNTIME_DIR or HOME to a folder of your own")
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("transformer_core", "leased-gpus"):
        folder /= name
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own(folder):
            raise Refusal(
                f"{folder}: must be a folder that only this user may enter\n    remedy: remove it, or "
                "set XDG_RUNTIME_DIR to a folder of your own"
            )
    return folder


def _is_own(folder: Path) -> bool:
    """Whether this is a folder, and no link, that only this user can enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and private


_HELD: dict[str, IO[str]] = {}


def lease_here(count: int) -> None:
    """Leases ``count`` GPUs for this process and its children until it ends: no other lease includes
    them. Does nothing without a GPU."""
    found = visible_gpus()
    if found and count:
        # With too few GPUs the job itself reports that it cannot run.
        _HELD.update(lease(found, min(count, len(found)), lease_folder()))
        # CUDA would number them by speed; NVML and this module number them by bus position.
        os.environ.update({VISIBLE: ",".join(_HELD), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
