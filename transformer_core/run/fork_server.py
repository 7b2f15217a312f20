"""A process that has imported the modules the project's jobs need, and forks for each job.

It has computed nothing, so that a fork is what a new process is after its imports. It ends with
Snakemake, or when nobody has asked it for a while, and leaves no file behind. A fork ends with it,
and with whoever asked for it.

A fork has its parent's data, but finds the pages of files that its parent has mapped, most of them
code of libraries, one by one: it would seem smaller than a new process, which read them while it
imported. So it reads a byte of each of them first.
"""

import contextlib
import ctypes
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from transformer_core.common.sources import PACKAGES
from transformer_core.run import quick_start
from transformer_core.run.quick_start import imported
from transformer_core.run.statuses import end_with_parent
from transformer_core.run.warm_start import GROUP, IMPORTS, JOBS, remove_folder

CHANGES_NO_RESULT = True  # a program does the same, forked or not

Pages = Sequence[tuple[int, int]]
"""Runs of pages: address and number."""

_SIZE = 4096
_PRESENT, _OF_FILE = 1 << 63, 1 << 61
"""Bits of an entry of /proc/<pid>/pagemap (Linux, Documentation/admin-guide/mm/pagemap.rst)."""


_AT_ONCE = 2048
"""Entries read at a time: large blocks of memory, once freed, change the limits that glibc's
allocator then uses."""


def file_pages() -> Pages:
    """The pages of files that this process has in memory and has not changed."""
    found: list[tuple[int, int]] = []
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *_, name = line.split(maxsplit=5) if "/" in line else ("", "", "")
            if access.startswith("r") and name.startswith("/"):
                start, end = (int(address, 16) // _SIZE for address in span.split("-"))
                for first in range(start, end, _AT_ONCE):
                    pagemap.seek(first * 8)
                    entries = pagemap.read(min(_AT_ONCE, end - first) * 8)
                    found += _runs(first, np.frombuffer(entries, np.uint64))
    return found


def _runs(first: int, entries: npt.NDArray[np.uint64]) -> Pages:
    """Runs of pages of files among the entries of pages from ``first`` on."""
    wanted = np.uint64(_PRESENT | _OF_FILE)
    there = (entries & wanted) == wanted
    edges = np.flatnonzero(np.diff(there.astype(np.int8), prepend=0, append=0))
    return [((first + int(a)) * _SIZE, int(b - a)) for a, b in edges.reshape(-1, 2)]


def map_pages(pages: Pages) -> None:
    """Read a byte of each page."""
    for address, number in pages:
        run = (ctypes.c_ubyte * (number * _SIZE)).from_address(address)
        int(np.frombuffer(memoryview(run).cast("B"), np.uint8)[::_SIZE].sum())


_REQUEST_SECONDS = 5.0


@dataclass(frozen=True)
class Request:
    """A client's request."""

    module: str
    options: Sequence[str]
    processes: int | None
    """As in :func:`transformer_core.run.quick_start.fork`; None for one process."""
    environment: Mapping[str, str]
    ignored: Sequence[int]
    """Signals that the client was started to ignore."""
    streams: Sequence[int]
    """Standard input, output and error."""

    def close(self) -> None:
        """Closes the streams."""
        for stream in self.streams:
            os.close(stream)


def read_request(connection: socket.socket) -> Request:
    """Reads a client's request; OSError or ValueError if it sends something else."""
    connection.settimeout(_REQUEST_SECONDS)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    try:
        (length,) = struct.unpack("!Q", head)
        text = b""
        while len(text) < length:
            part = connection.recv(length - len(text))
            if not part:
                raise ValueError("the request is not complete")
            text += part
        connection.settimeout(None)
        return Request(**json.loads(text), streams=streams)
    except (OSError, ValueError, TypeError, struct.error) as error:
        for stream in streams:
            os.close(stream)
        raise ValueError(f"not a request: {error}") from None


@dataclass(frozen=True)
class Imported:
    """The state of the server after its imports, beside its data."""

    environment: Mapping[str, str]
    """Variables that imports have set."""
    pages: Pages
    """Pages of files that imports have read."""


def become(request: Request, found: Imported) -> NoReturn:
    """Runs the program of ``request`` to its end, in a fork of a server."""
    end_with_parent()
    # A group of its own, which ends as a whole.
    os.setpgid(0, 0)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update({**request.environment, **found.environment})
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    # Seeded from the system when they are imported; all forks would have the same.
    random.seed()
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    map_pages(found.pages)
    sys.argv = [request.module, *request.options]
    quick_start.to_the_end(lambda: quick_start.carry_out(request))


IDLE_SECONDS = 60.0
"""Idle seconds after which the memory is worth more than a fast next start."""
_IDLE_SECONDS_OF_GROUP = 5.0
"""The same for a group, which starts once and then ends."""


def touched_gpu(files: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has opened a GPU: CUDA does not work in forks of such a process."""
    for entry in files.iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia"):
                return True
    return False


class Server:
    """Forks for requests to ``listening``, until the process ``owner`` ends."""

    def __init__(self, path: Path, listening: socket.socket, owner: int) -> None:
        self.path, self.listening = path, listening
        self.selector = selectors.DefaultSelector()
        self.forks: dict[int, socket.socket] = {}
        """Connections of the clients, by the process id of their fork."""
        self.open = True
        self.began = time.time()
        self.idle = _IDLE_SECONDS_OF_GROUP if GROUP in os.environ else IDLE_SECONDS
        self._on(listening, self._accept)
        self._on(os.pidfd_open(owner), self._stop)

    def serve(self) -> Request | None:
        """Returns a request in the fork that must carry it out, and None in the server when it is
        done."""
        while self.open or self.forks:
            ready = self.selector.select(self.idle)
            if not ready and not self.forks:
                self._stop()
            for entry, _ in ready:
                if entry.fd in self.selector.get_map():
                    request = entry.data()
                    if request is not None:
                        return request
        return None

    def _on(self, file: Any, what: Callable[[], Request | None]) -> None:
        self.selector.register(file, selectors.EVENT_READ, what)

    def _accept(self) -> Request | None:
        connection, _ = self.listening.accept()
        try:
            request = read_request(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        if not self._up_to_date() or touched_gpu():
            request.close()
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._leave()
            connection.close()
            return request
        request.close()
        self._watch(connection, pid)
        with contextlib.suppress(OSError):
            connection.sendall(b"+")
        return None

    def _up_to_date(self) -> bool:
        """Whether the sources are those that were imported; if not, this server is out of date."""
        changed = False
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in PACKAGES and (file := getattr(module, "__file__", None)):
                path = Path(file)
                changed |= not path.exists() or path.stat().st_mtime > self.began
        if changed:
            self._stop()
        return not changed

    def _watch(self, connection: socket.socket, pid: int) -> None:
        """Forwards messages to a fork, and reports how it ended."""
        ended = os.pidfd_open(pid)
        self.forks[pid] = connection

        def hear() -> None:
            heard = b""
            with contextlib.suppress(OSError):
                heard = connection.recv(16)
            for number in heard:
                os.kill(pid, number)
            if not heard:
                # The client is gone: end everything that the fork has started.
                self.selector.unregister(connection)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

        def tell() -> None:
            _, status = os.waitpid(pid, 0)
            self.selector.unregister(ended)
            os.close(ended)
            with contextlib.suppress(KeyError):
                self.selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
            connection.close()
            del self.forks[pid]

        self._on(connection, hear)
        self._on(ended, tell)

    def _stop(self) -> None:
        """Stops taking requests."""
        if self.open:
            self.open = False
            self.path.unlink(missing_ok=True)
            self.selector.unregister(self.listening)
            self.listening.close()

    def _leave(self) -> None:
        """In a fork: closes the server's files."""
        files = [entry.fileobj for entry in self.selector.get_map().values()]
        # First: unregistering a file here would unregister it in the server, too.
        self.selector.close()
        for file in files:
            if isinstance(file, int):
                os.close(file)
            else:
                file.close()  # type: ignore[attr-defined]


def main() -> None:
    path, number, owner, *jobs = sys.argv[1:]
    listening = socket.socket(fileno=int(number))
    listening.set_inheritable(False)
    server = Server(Path(path), listening, int(owner))
    before = dict(os.environ)
    imported(*(JOBS if jobs else IMPORTS))
    set_by_imports = dict(os.environ.items() - before.items())
    found = Imported(set_by_imports, file_pages())
    request = server.serve()
    if request is not None:
        become(request, found)
    folder = Path(path).parent
    if all(left.suffix == ".lock" for left in folder.iterdir()):
        remove_folder(folder)


if __name__ == "__main__":
    main()
