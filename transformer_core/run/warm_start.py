"""Runs a program in a fork of a server that has already imported its modules.

The process that starts a program waits for it as its proxy: it passes on its standard streams,
working folder, environment and signals, and ends with the program's exit status. It imports nothing
slow. If the server is unavailable or anything else is unusual, the program starts in the normal way.
A supervisor asks for its workers directly (:class:`Fork`).

A server belongs to one Snakemake on one host. It serves only processes that would have started in
the same way as itself: with the same environment, limits, priority and cores, in the same folder.
Settings that a process reads later (its rank, its visible GPUs) may differ. One server is for
workers, with everything that trainings import; one for jobs, which wait for their workers; and one
for users' scripts, with the modules that observe them. A server has computed nothing, so a fork
equals a new process after its imports. It ends with its owner (Snakemake, or the command that
observes scripts), or after a while without requests; a fork ends with the server, and with the
process that asked for it. The socket has a name in the kernel rather than a file, and accepts this
user only.

A fork shares its parent's data, but maps the pages of files, mostly code of libraries, one at a time
when it touches them: its memory would look smaller than that of a new process, which read them
during its imports. So the fork first reads a byte of each.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from transformer_core.common.quick_end import to_the_end

CHANGES_NO_RESULT = True  # a program behaves the same, forked or not

THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
"""Snakemake sets all of them to the cores of a job. Each library reads some of them, in its own
order: torch reads MKL's before OpenMP's."""
_KEPT = (*THREADS, "CUDA_DEVICE_ORDER")
"""Variables that jobs set, but that a user's script must see as the user set them. CUDA numbers GPUs by
speed; jobs number them by bus."""
GIVEN_THREADS = "GIVEN_THREADS"
"""Environment variable with the user's own values of these, as JSON."""


def keep_given_threads() -> None:
    """Keeps the user's own numbers of threads, and order of GPUs, for :func:`restore_given_threads`, before
    a job starts."""
    given = {name: os.environ[name] for name in _KEPT if name in os.environ}
    os.environ.setdefault(GIVEN_THREADS, json.dumps(given))


def restore_given_threads() -> None:
    """Sets the numbers of threads, and the order of GPUs, that the user gave, in a job of Snakemake: a script
    runs as it would without one, on the same GPU."""
    if (given := os.environ.pop(GIVEN_THREADS, None)) is not None:
        for name in _KEPT:
            os.environ.pop(name, None)
        os.environ.update(json.loads(given))


WARM_STARTS = "WARM_STARTS"
"""Environment variable that offers warm starts: process id of the owner of the servers and
:func:`this_place`. Any other value, like ``off``, disables them."""
_READ_LATE = frozenset(
    [
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NSYS_PROFILING_SESSION_ID"),
        *("STUDY_OPTIONS", "LOCAL_SHARDS"),
        *("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"),
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("NODE_RANK", "RENDEZVOUS", "RUN_HOST", "RUN_LINK"),  # of one of several hosts
        "TUNE_TRAINING_SIDE",  # order.SIDE of tune
        "PYTEST_CURRENT_TEST",  # another value for each test of a user's suite, or of ours
    ]
)
_READ_LATE_OF = ("TORCHELASTIC_", "PET_")

# torch's optimizers would import the second on first use.
_TORCH = ("torch", "torch._dynamo")
_TORCHRUN = ("torch.distributed.elastic.multiprocessing.errors", "torch.distributed.launcher")
WORKERS = (
    *_TORCH,
    *_TORCHRUN,
    "transformer_core.run.worker",
    "transformer_core.measure.timed_run",
    "transformer_core.observe.clock",
    "transformer_core.training.loop",
    "transformer_core.measure.memory_anatomy_worker",
    "transformer_core.certify.short_run_worker",
    "transformer_core.measure.turns_worker",
    "transformer_core.observe.profiler",
    "transformer_core.training.translate",
)
"""Imported by the server for workers."""
SIDES = ("transformer_core.tune.side", "transformer_core.audit.side")
"""Programs that run a user's script and observe it."""
JOBS = (
    "transformer_core.run.job",
    "transformer_core.measure.timed_run",
    "transformer_core.measure.collectives",
    "transformer_core.measure.compute",
    "transformer_core.measure.evaluation",
    "transformer_core.measure.memory_anatomy",
    "transformer_core.certify.short_run",
    "transformer_core.observe.profile_job",
    "transformer_core.observe.breakdown",
    "transformer_core.trace.__main__",
    "transformer_core.certify.judge",
    "transformer_core.decide.combine",
)
"""Imported by the server for jobs. None of them imports torch, and none is measured."""
Kind = Literal["workers", "sides", "jobs"]
IMPORTS: dict[Kind, Sequence[str]] = {
    "workers": WORKERS,
    "sides": (*_TORCH, SIDES[0]),
    "jobs": JOBS,
}
"""Modules that a server of each kind imports."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program by default."""
_BEGUN = b"+"  # from a server that has forked; the process id follows
_START_SECONDS = 120.0
"""Seconds for a server to start, including its imports on a busy machine."""
_REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 1 << 20
IDLE_SECONDS = 300.0
"""Idle seconds after which freeing the memory is worth more than a fast start: longer than the turns
of a small study, which start nothing."""


# The side that starts a program


@dataclass(frozen=True)
class Program:
    """A module to run as a program, alone or as ``processes`` forks under torchrun's agent."""

    module: str
    options: Sequence[str]
    processes: int | None


def start_warm(program: Program) -> None:
    """Runs ``program`` in a fork of this host's server, and ends this process with its exit status.

    Returns, before anything has run, if no server is available.
    """
    with contextlib.suppress(OSError, ValueError):
        server = _asked(program, os.environ)
        if server is not None:
            with server:
                server.settimeout(_START_SECONDS)
                if server.recv(1):
                    _stand_for(server)


class Fork:
    """A program in a fork of a server. It is polled, waited for and killed like a
    :class:`subprocess.Popen`, and ends with this process.

    ``otherwise`` starts the program if the server does not.
    """

    def __init__(
        self, server: socket.socket, otherwise: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self._server = server
        self._otherwise = otherwise
        self._instead: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None
        """Its process id, once it has begun."""
        self._code: int | None = None
        self._killed = False
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit code; subprocess.TimeoutExpired after ``timeout`` seconds."""
        # A second thread would read the end of the connection, and take it for that of the server.
        if not self._reading.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        try:
            while self._code is None:
                if self._instead is not None:
                    return self._instead.wait(timeout)
                self._server.settimeout(timeout)
                try:
                    self._hear(self._server.recv(5))
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired("fork", timeout or 0.0) from None
                except OSError:
                    self._hear(b"")
            return self._code
        finally:
            self._reading.release()

    def send_signal(self, number: int) -> None:
        if self._instead is not None:
            self._instead.send_signal(number)
        elif self._code is None:
            with contextlib.suppress(OSError):
                self._server.send(bytes([number]))

    def kill(self) -> None:
        """Ends the program and everything it has started; wait for the end."""
        if self._instead is not None:
            self._instead.kill()
        elif self._code is None:
            self._killed = True
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)  # the server still tells the exit code

    def _hear(self, told: bytes) -> None:
        if told[:1] == _BEGUN and len(told) == 5:
            self.pid = _code_of(told[1:])
        elif self.pid is not None or self._killed:
            self._code = _code_of(told)
            self._server.close()
        else:
            self._server.close()
            self._instead = self._otherwise()


def start_fork(
    program: Program,
    environment: Mapping[str, str],
    otherwise: Callable[[], subprocess.Popen[bytes]],
    streams: Sequence[int] = (0, 1, 2),
) -> Fork | None:
    """Starts ``program`` in a fork of this host's server, with these standard ``streams``; None if no
    server is available. It has no proxy process: those of many sides would take a second to start."""
    with contextlib.suppress(OSError, ValueError):
        server = _asked(program, environment, streams)
        return None if server is None else Fork(server, otherwise)
    return None


def _asked(
    program: Program, environment: Mapping[str, str], streams: Sequence[int] = (0, 1, 2)
) -> socket.socket | None:
    """Asks a server to run ``program``; returns the connection, on which the server will confirm.
    None if the ``environment`` offers no server."""
    owner = server_owner(environment)
    if owner is None:
        return None
    server = _connected(owner, kind_of(program.module), environment)
    try:
        text = json.dumps(vars(program) | {"environment": dict(environment)}).encode()
        socket.send_fds(server, [text], list(streams))
    except OSError:
        server.close()
        raise
    return server


def server_owner(environment: Mapping[str, str]) -> int | None:
    """The process that offers warm starts according to this ``environment``; None without an offer,
    or if it is for another place."""
    pid, _, place = environment.get(WARM_STARTS, "").partition(":")
    return int(pid) if pid.isdigit() and place == this_place() else None


def offer_warm_starts() -> str:
    """The value of :data:`WARM_STARTS` by which this process offers warm starts to its jobs."""
    return f"{os.getpid()}:{this_place()}" if sys.platform == "linux" else "off"


def this_place() -> str:
    """A name for this host as its processes see it: different in another container, Slurm job or
    network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    spaces = sorted(
        str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "mnt", "pid", "user")
    )
    return _digest([boot, spaces, os.environ.get("SLURM_JOB_ID")])


def kind_of(module: str) -> Kind:
    """The kind of server for this module, or package with a ``__main__``."""
    if module in JOBS or f"{module}.__main__" in JOBS:
        return "jobs"
    return "sides" if module in SIDES else "workers"


def _connected(owner: int, kind: Kind, environment: Mapping[str, str]) -> socket.socket:
    """A connection to the server of this ``kind`` for processes started like this one, with this
    ``environment``. Starts the server if necessary."""
    address = f"\0{server_key(kind, environment)}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(address)
    except ConnectionRefusedError:
        _start_server(address, owner, kind, environment)
        server.connect(address)
    _check_user(server)
    return server


def _start_server(address: str, owner: int, kind: Kind, environment: Mapping[str, str]) -> None:
    """Starts a server that listens at ``address``, unless another process is already doing so. Early
    clients wait until it is ready."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listening, contextlib.suppress(OSError):
        listening.bind(address)
        listening.listen(64)
        number = listening.fileno()
        command = [sys.executable, "-m", __spec__.name, str(number), str(owner)]
        subprocess.Popen(
            [*command, kind],
            # Not in the user's folder, whose modules may have any name: Python would import them.
            cwd="/" if kind == "sides" else None,
            env=environment_of(kind, environment),
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _check_user(connection: socket.socket) -> None:
    """Raises PermissionError if another user is at the other end."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    if struct.unpack("3i", found)[1] != os.getuid():
        raise PermissionError("somebody else's process")


def _stand_for(server: socket.socket) -> NoReturn:
    """Waits for the program as its proxy, and ends with its exit status."""

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            server.send(bytes([number]))

    server.settimeout(None)
    for number in ENDING:
        # A process started to ignore it (nohup, a shell's background) still ignores it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    told = b""
    with contextlib.suppress(ConnectionResetError):  # it was killed before it read a signal
        told = server.recv(4)
    code = _code_of(told)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _code_of(told: bytes) -> int:
    """The exit code of a program, from its server's message. The message is empty if the server has
    ended, and its forks with it."""
    code: int = struct.unpack("!i", told)[0] if told else -signal.SIGKILL
    return code


def server_key(kind: Kind, environment: Mapping[str, str]) -> str:
    """A digest of everything that a process inherits at its start, with this ``environment``; for
    jobs, see :func:`environment_of`."""
    environment = {
        name: value
        for name, value in environment_of(kind, environment).items()
        if name not in _READ_LATE and not name.startswith(_READ_LATE_OF)
    }
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    mask = os.umask(0)
    os.umask(mask)
    # Each side changes to its own folder by itself.
    folder = "/" if kind == "sides" else str(Path.cwd())
    return _digest(
        [
            *(kind, environment, limits, mask, folder, sys.executable, sys.flags),
            *(sorted(os.sched_getaffinity(0)), os.nice(0)),
            Path("/proc/self/cgroup").read_text(),
        ]
    )


def environment_of(kind: Kind, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server for processes with the ``given`` one. It is the same, except for
    jobs: they wait, or compute only briefly, so one server with a single thread is enough for all of
    them, however many cores they have reserved for their workers."""
    return dict(given) | (dict.fromkeys(THREADS, "1") if kind == "jobs" else {})


def _digest(found: object) -> str:
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# The server


@dataclass(frozen=True)
class Request(Program):
    environment: Mapping[str, str]
    streams: Sequence[int]  # standard input, output and error


def read_request(connection: socket.socket) -> Request:
    """Reads a client's request; OSError or ValueError if it is invalid."""
    _check_user(connection)
    connection.settimeout(_REQUEST_SECONDS)
    text, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    connection.settimeout(None)
    try:
        if len(streams) != 3:  # this process may not open more files
            raise ValueError(f"{len(streams)} of 3 streams")
        return Request(**json.loads(text), streams=streams)
    except (ValueError, TypeError) as error:
        _close(streams)
        raise ValueError(f"not a request: {error}") from None


class Server:
    """Forks for requests to ``listening``, until the process ``owner`` ends."""

    def __init__(self, listening: socket.socket, owner: int) -> None:
        self.listening = listening
        self.selector = selectors.DefaultSelector()
        self.forks: set[int] = set()
        self.open = True
        self.began = time.time()
        self._owner = os.pidfd_open(owner)
        self._on(listening, self._accept)
        self._on(self._owner, self._stop)

    def serve(self) -> Request | None:
        """Returns a request in the fork that must carry it out, and None in the server at its
        end."""
        while self.open or self.forks:
            ready = self.selector.select(IDLE_SECONDS)
            if not ready and not self.forks:
                self._stop()
            for entry, _ in ready:
                # An event before this one may have closed the file, and another may have its number now.
                if self.selector.get_map().get(entry.fd) is entry:
                    request: Request | None = entry.data()
                    if request is not None:
                        return request
        return None

    def _on(self, file: Any, what: Callable[[], Request | None]) -> None:
        self.selector.register(file, selectors.EVENT_READ, what)

    def _accept(self) -> Request | None:
        try:
            connection, _ = self.listening.accept()
        except OSError:  # too many files: clients start by themselves, and those that run go on
            self._stop()
            return None
        try:
            request = read_request(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        pid = None
        if self._up_to_date() and not _used_gpu():
            with contextlib.suppress(OSError):  # too many processes: those that run go on
                pid = os.fork()
        if pid is None:
            _close(request.streams)
            connection.close()
            return None
        if pid == 0:
            self._leave()
            connection.close()
            return request
        _close(request.streams)  # before a file is needed to watch the fork
        self._watch(connection, pid)
        with contextlib.suppress(OSError):
            connection.send(_BEGUN + struct.pack("!i", pid))
        return None

    def _up_to_date(self) -> bool:
        """Whether the sources are unchanged since their import; otherwise stops this server."""
        from transformer_core.common.sources import PACKAGES

        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in PACKAGES and (file := getattr(module, "__file__", None)):
                path = Path(file)
                if not path.exists() or path.stat().st_mtime > self.began:
                    self._stop()
                    return False
        return True

    def _watch(self, connection: socket.socket, pid: int) -> None:
        """Forwards signals to a fork, and reports how it ended."""
        ended = os.pidfd_open(pid)
        self.forks.add(pid)

        def hear() -> None:
            heard = b""
            with contextlib.suppress(OSError):
                heard = connection.recv(1)
            if heard:
                os.kill(pid, heard[0])
                return
            # The client is gone: end everything the fork has started.
            self.selector.unregister(connection)
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet, and started nothing
                os.kill(pid, signal.SIGKILL)

        def tell() -> None:
            _, status = os.waitpid(pid, 0)
            self.selector.unregister(ended)
            os.close(ended)
            with contextlib.suppress(KeyError):
                self.selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.send(struct.pack("!i", os.waitstatus_to_exitcode(status)))
            connection.close()
            self.forks.remove(pid)

        self._on(connection, hear)
        self._on(ended, tell)

    def _stop(self) -> None:
        if self.open:
            self.open = False
            self.selector.unregister(self.listening)
            self.listening.close()
            # An owner that has ended would be reported without end, as long as forks run.
            self.selector.unregister(self._owner)
            os.close(self._owner)

    def _leave(self) -> None:
        """In a fork: closes the server's files."""
        files: list[Any] = [entry.fileobj for entry in self.selector.get_map().values()]
        # Before anything else: unregistering a file here would unregister it in the server, too.
        self.selector.close()
        _close([file if isinstance(file, int) else file.detach() for file in files])


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


_DRIVER, _NOT_INITIALIZED = "libcuda.so.1", 3
"""CUDA's driver, and what its functions return before their first use (cudaError_enum)."""


def _used_gpu() -> bool:
    """Whether this process has used CUDA, which would not work in its forks. A library may use it without
    torch, and torch.cuda.is_available() does so without initializing torch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL(_DRIVER, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # nothing has loaded it
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def become(request: Request, server: int, imported: Mapping[str, str], pages: "Pages") -> NoReturn:
    """Runs the program of ``request`` to its end, in a fork of the process ``server``, whose imports set
    the variables ``imported`` and read ``pages``."""
    import random

    import numpy as np

    from transformer_core.run import quick_start
    from transformer_core.run.statuses import end_with_parent

    end_with_parent(server)
    # In a new process group, so that it can be ended as a whole.
    os.setpgid(0, 0)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    _close(request.streams)
    os.environ.clear()
    os.environ.update({**request.environment, **imported})
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    # These were seeded from the system on import; all forks would have the same seeds.
    random.seed()
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    map_pages(pages)
    sys.argv = [request.module, *request.options]
    to_the_end(lambda: quick_start.carry_out(request))


Pages = Sequence[tuple[int, int]]  # runs of pages: address and number

_SIZE = 4096
_PRESENT, _OF_FILE = 1 << 63, 1 << 61
"""Bits of an entry of /proc/<pid>/pagemap (Linux, Documentation/admin-guide/mm/pagemap.rst)."""
_AT_ONCE = 2048
"""Entries read at a time: freeing large blocks of memory would change the thresholds of glibc's
allocator."""


def file_pages() -> Pages:
    """The pages of files that are in this process's memory, unchanged."""
    import numpy as np

    wanted = np.uint64(_PRESENT | _OF_FILE)
    found: list[tuple[int, int]] = []
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *_, name = line.split(maxsplit=5) if "/" in line else ("", "", "")
            if access.startswith("r") and name.startswith("/"):
                start, end = (int(address, 16) // _SIZE for address in span.split("-"))
                for first in range(start, end, _AT_ONCE):
                    pagemap.seek(first * 8)
                    entries = pagemap.read(min(_AT_ONCE, end - first) * 8)
                    there = (np.frombuffer(entries, np.uint64) & wanted) == wanted
                    edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0))
                    runs = edges.reshape(-1, 2).tolist()
                    found += [((first + a) * _SIZE, b - a) for a, b in runs]
    return found


def map_pages(pages: Pages) -> None:
    for address, number in pages:
        for page in range(number):
            ctypes.c_ubyte.from_address(address + page * _SIZE).value  # noqa: B018


def main() -> None:
    from transformer_core.run.quick_start import imported

    number, owner, kind = sys.argv[1:]
    listening = socket.socket(fileno=int(number))
    listening.set_inheritable(False)
    server, process = Server(listening, int(owner)), os.getpid()
    before = dict(os.environ)
    imported("numpy", *IMPORTS[cast(Kind, kind)])
    set_by_imports = dict(os.environ.items() - before.items())
    pages = file_pages()
    request = server.serve()
    if request is not None:
        become(request, process, set_by_imports, pages)


if __name__ == "__main__":
    main()
