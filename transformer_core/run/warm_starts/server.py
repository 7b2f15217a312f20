"""A process that has imported what the jobs of this project need, and forks for each of them.

It has computed nothing, so that a fork is what a new process is after its imports. It ends with
Snakemake, or when nobody has asked it for a while, and leaves no file behind. A fork ends with it,
and with whoever asked for it.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_core.common.sources.bare_trees import PACKAGES
from transformer_core.run.quick_start import imported
from transformer_core.run.warm_starts.places import GROUP
from transformer_core.run.warm_starts.fork import (
    Imported,
    Request,
    become,
    read_request,
)
from transformer_core.run.warm_starts.imports import IMPORTS, JOBS
from transformer_core.run.warm_starts.resident_pages import file_pages

IDLE_SECONDS = 60.0
"""After so long without a fork the memory is worth more than the time of the next start."""
_IDLE_SECONDS_OF_GROUP = 5.0
"""The same for a group, which starts at once and is then over."""


def touched_gpu(files: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has opened a GPU: CUDA does not work in the forks of one that has."""
    for entry in files.iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia"):
                return True
    return False


class Server:
    """Forks for requests that come to ``listening``, until the process ``owner`` is gone."""

    def __init__(self, path: Path, listening: socket.socket, owner: int) -> None:
        self.path, self.listening = path, listening
        self.selector = selectors.DefaultSelector()
        self.forks: dict[int, socket.socket] = {}
        """Connections of those who asked, by the process id of what they asked for."""
        self.open = True
        self.began = time.time()
        self.idle = _IDLE_SECONDS_OF_GROUP if GROUP in os.environ else IDLE_SECONDS
        self._on(listening, self._accept)
        self._on(os.pidfd_open(owner), self._stop)

    def serve(self) -> Request | None:
        """Returns a request in the fork that is to carry it out, and None in the server when it has
        nothing more to do."""
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
        """Whether the sources are what was imported; if not, this server has had its time."""
        changed = False
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in PACKAGES and (file := getattr(module, "__file__", None)):
                path = Path(file)
                changed |= not path.exists() or path.stat().st_mtime > self.began
        if changed:
            self._stop()
        return not changed

    def _watch(self, connection: socket.socket, pid: int) -> None:
        """Hand on what comes for a fork, and tell how it ended."""
        ended = os.pidfd_open(pid)
        self.forks[pid] = connection

        def hear() -> None:
            heard = b""
            with contextlib.suppress(OSError):
                heard = connection.recv(16)
            for number in heard:
                os.kill(pid, number)
            if not heard:
                # Who asked is gone: so goes all that the fork has started.
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
        """Take no more requests."""
        if self.open:
            self.open = False
            self.path.unlink(missing_ok=True)
            self.selector.unregister(self.listening)
            self.listening.close()

    def _leave(self) -> None:
        """In a fork: close what belongs to the server."""
        files = [entry.fileobj for entry in self.selector.get_map().values()]
        # First: to take a file out of it would take it out of the server's, too.
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
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
