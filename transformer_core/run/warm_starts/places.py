"""Which fork server a process may ask, and where that listens.

A server belongs to one Snakemake on one host, and serves processes that would be started just as it
was itself: with the same environment, limits, priority and cores, in the same folder. What a
process reads only after it has begun (its rank, the GPUs that it may see) may differ.
"""

import hashlib
import json
import os
import resource
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from transformer_core.run.warm_starts.thread_variables import THREADS

CHANGES_NO_RESULT = True  # it says where a program is started, not what that does

WARM_STARTS = "WARM_STARTS"
"""Environment variable that offers warm starts: process id of Snakemake and :func:`this_place`. Any other
value, like ``off``, stands for none."""
GROUP = "WARM_STARTS_GROUP"
"""Environment variable: processes with different values have different servers."""

_READ_LATE = frozenset(
    [
        *("CUDA_VISIBLE_DEVICES", "STUDY_OPTIONS", "LOCAL_SHARDS", "NSYS_PROFILING_SESSION_ID"),
        *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    ]
)
_READ_LATE_OF = ("TORCHELASTIC_",)


def this_place() -> str:
    """A name of this host as its processes see it: another container, Slurm job or network
    namespace is another place."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    spaces = sorted(
        str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "mnt", "pid", "user")
    )
    return _digest([boot, spaces, os.environ.get("SLURM_JOB_ID")])


def offer_warm_starts() -> str:
    """The value of :data:`WARM_STARTS` with which this process offers warm starts to its jobs."""
    remove_folders_of_the_dead()
    return f"{os.getpid()}:{this_place()}" if sys.platform == "linux" else "off"


def server_owner() -> int | None:
    """The process that offers warm starts to this one; None where nobody does, or elsewhere."""
    pid, _, place = os.environ.get(WARM_STARTS, "").partition(":")
    return int(pid) if pid.isdigit() and place == this_place() else None


def folder_of(pid: int) -> Path:
    """The folder of the sockets of an owner, for this user alone; OSError where that cannot be."""
    folder = Path(tempfile.gettempdir(), f"warm-starts-{os.getuid()}-{pid}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder}: is not a folder of this user alone")
    return folder


def remove_folders_of_the_dead() -> None:
    """Remove what servers left behind that were killed together with their owner. One that only
    looks dead from here, in another container, loses nothing but its next warm start."""
    prefix = f"warm-starts-{os.getuid()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix)
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def server_key(jobs: bool = False) -> str:
    """A digest of all that a process has from its start, before it runs any code of ours; of one
    that serves ``jobs``, see :func:`environment_of`."""
    environment = {
        name: value
        for name, value in environment_of(jobs).items()
        if name not in _READ_LATE and not name.startswith(_READ_LATE_OF)
    }
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    mask = os.umask(0)
    os.umask(mask)
    return _digest(
        [
            *(jobs, environment, limits, mask, str(Path.cwd()), sys.executable, sys.flags),
            *(sorted(os.sched_getaffinity(0)), os.nice(0)),
            Path("/proc/self/cgroup").read_text(),
        ]
    )


def environment_of(jobs: bool) -> dict[str, str]:
    """The environment that a server for processes like this one begins with: for workers this
    process's own. Jobs wait, or compute for moments: however many cores they have reserved for
    their workers, one server with one thread will do for all of them."""
    return dict(os.environ) | (dict.fromkeys(THREADS, "1") if jobs else {})


def _digest(found: object) -> str:
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
