"""A program in a fork of a server that has imported what it needs: the side that starts it.

This process stays until the program ends, and stands for it: it hands on its own standard streams,
working folder, environment and the signals that it gets, and ends as the program does. It imports
nothing that takes time. Where anything is odd, there is no warm start, and nothing has happened.

A server belongs to one Snakemake on one host, and serves processes that would be started just as it
was itself: with the same environment, limits, priority and cores, in the same folder. What a
process reads only after it has begun (its rank, the GPUs that it may see) may differ. There is one
server for workers, with all that trainings import, and one for jobs, which wait for their workers.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_core.run.own_folder import is_own, open_own, own_folder

CHANGES_NO_RESULT = True  # a program imports and does the same, forked or not

THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
"""Snakemake sets all of them to the cores of a job. Each library reads some, in its own order:
torch reads MKL's before OpenMP's."""

SERVER = "transformer_core.run.fork_server"

_FOLDER = "warm-starts"

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program by default."""
_START_SECONDS = 120.0
"""Seconds that a server may take to start, with all of its imports on a busy machine."""


WARM_STARTS = "WARM_STARTS"
"""Environment variable that offers warm starts: process id of Snakemake and :func:`this_place`. Any
other value, like ``off``, disables them."""
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


IMPORTS = (
    "torch",
    # The optimizers of torch import it when they are first used.
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.launcher",
    "transformer_core.run.worker",
    "transformer_core.measure.timed_run_worker",
    "transformer_core.measure.memory_anatomy_worker",
    "transformer_core.certify.short_run_worker",
    "transformer_core.measure.turns_worker",
    "transformer_core.observe.profiler",
    "transformer_core.training.translate",
    "transformer_core.training.continue_texts",
)

JOBS = (
    "transformer_core.run.job",
    "transformer_core.measure.timed_run",
    "transformer_core.measure.evaluation",
    "transformer_core.measure.memory_anatomy",
    "transformer_core.certify.short_run",
    "transformer_core.observe.profile_job",
    "transformer_core.observe.breakdown",
    "transformer_core.trace.__main__",
    "transformer_core.certify.judge",
    "transformer_core.certify.certificate_table",
    "transformer_core.decide.combine",
)
"""None of them imports torch, and none is measured."""


def start_warm(module: str, options: Sequence[str], processes: int | None = None) -> None:
    """Run ``module`` with ``options`` in a fork of this host's server, and end this process as that
    ends; ``processes`` as in :func:`transformer_core.run.quick_start.fork`.

    Returns where there is no server to be had, and before anything has run.
    """
    request = {
        "module": module,
        "options": [*options],
        "processes": processes,
        "ignored": [n for n in ENDING if signal.getsignal(n) == signal.SIG_IGN],
    }
    with contextlib.suppress(OSError, ValueError):
        owner = server_owner()
        if owner is not None:
            with _connected(owner, is_job(module)) as server:
                if _accepted(server, request | {"environment": dict(os.environ)}):
                    _stand_for(server)


def _connected(owner: int, jobs: bool) -> socket.socket:
    """A connection to the server for processes like this one, workers or ``jobs``; it is started if
    there is none."""
    folder, key = folder_of(owner), server_key(jobs)
    server = socket.socket(socket.AF_UNIX)
    with os.fdopen(open_own(folder / f"{key}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            server.connect(str(folder / key))
        except (FileNotFoundError, ConnectionRefusedError):
            _start_server(folder / key, owner, jobs)
            server.connect(str(folder / key))
    return server


def _start_server(path: Path, owner: int, jobs: bool) -> None:
    """Starts a server that listens at ``path``; early clients wait until it is ready."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        number = listening.fileno()
        subprocess.Popen(
            [sys.executable, "-m", SERVER, str(path), str(number), str(owner), *["jobs"] * jobs],
            env=environment_of(jobs),
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _accepted(server: socket.socket, request: dict[str, Any]) -> bool:
    """Whether the server has forked for this request."""
    text = json.dumps(request).encode()
    server.settimeout(_START_SECONDS)
    socket.send_fds(server, [struct.pack("!Q", len(text))], [0, 1, 2])
    server.sendall(text)
    return server.recv(1) == b"+"


def _stand_for(server: socket.socket) -> NoReturn:
    """Waits for the program, and ends with its exit status."""

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            server.sendall(bytes([number]))

    server.settimeout(None)
    for number in ENDING:
        # A process started to ignore it (nohup, a shell's background) still ignores it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    told = b""
    while len(told) < 4 and (part := server.recv(4 - len(told))):
        told += part
    # A server that is gone has taken its forks with it.
    code = struct.unpack("!i", told)[0] if len(told) == 4 else -signal.SIGKILL
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


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
    if sys.platform == "linux":
        remove_folders_of_the_dead()
    return f"{os.getpid()}:{this_place()}" if sys.platform == "linux" else "off"


def server_owner() -> int | None:
    """The process that offers warm starts to this one; None if none does, or it runs elsewhere."""
    pid, _, place = os.environ.get(WARM_STARTS, "").partition(":")
    return int(pid) if pid.isdigit() and place == this_place() else None


def folder_of(pid: int) -> Path:
    """The folder of the sockets of an owner, for this user alone; OSError where that cannot be."""
    return own_folder(_FOLDER, f"{_place()}{pid}")


def remove_folders_of_the_dead() -> None:
    """Removes leftovers of servers that were killed together with their owner."""
    with contextlib.suppress(OSError):
        for folder in own_folder(_FOLDER).glob(f"{_place()}*"):
            if not Path("/proc", folder.name.removeprefix(_place())).exists():
                remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of sockets and locks, if it is this user's own and holds nothing else."""
    with contextlib.suppress(OSError):
        if is_own(folder):
            for entry in folder.iterdir():
                if entry.suffix == ".lock" or entry.is_socket():
                    entry.unlink()
            folder.rmdir()


def _place() -> str:
    """Beginning of the names of this place's folders: hosts may share the folder of the user."""
    return f"{this_place()[:8]}-"


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


def is_job(module: str) -> bool:
    """Whether the server for jobs has this module, or package with a program."""
    return module in JOBS or f"{module}.__main__" in JOBS
