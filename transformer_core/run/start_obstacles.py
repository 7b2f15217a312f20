"""Reasons why processes cannot start here: requirements of every run that a host lacks.

Asked before a run (:func:`no_loopback`, which would else show after minutes of waiting) and after
one whose processes ended before they could say why.
"""

import os
import resource
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 1 << 20
_SECONDS = 2.0


def obstacle(folder: Path, threads: int, files: int = 64) -> str | None:
    """Returns what a run lacks that writes to ``folder`` and starts ``threads`` more threads and
    opens ``files`` more files than this process; None if nothing is missing."""
    found: Iterator[str | None] = (look() for look in _looks(folder, max(1, threads), files))
    return next((text for text in found if text), None)


def no_loopback() -> str | None:
    """A sentence if processes of this host cannot reach one another; else None."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=_SECONDS):
                return None
    except OSError as error:
        return (
            f"Processes on this host cannot reach one another at 127.0.0.1 ({error}). "
            "Remedy: ip link set lo up."
        )


def _looks(folder: Path, threads: int, files: int) -> list[Callable[[], str | None]]:
    return [
        lambda: _no_files(files),
        lambda: _no_threads(threads),
        lambda: _full(_SHARED_MEMORY, "remove what nobody uses there, or give it more room"),
        lambda: _full(Path(tempfile.gettempdir()), "make room there, or set TMPDIR"),
        lambda: _full(folder, "make room there"),
        no_loopback,
    ]


def _no_files(files: int) -> str | None:
    with ExitStack() as stack:
        try:
            for _ in range(files):
                stack.enter_context(Path(os.devnull).open())
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return (
                f"Too few files may be open: {error.strerror} at a limit of {limit}. "
                f"Remedy: ulimit -n {max(4096, 2 * limit)}."
            )
    return None


def _no_threads(threads: int) -> str | None:
    end, started = threading.Event(), []
    try:
        for _ in range(min(threads, 1024)):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limits = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {limit}"
        return (
            f"This host starts {len(started)} more threads of the {threads} that the run has, "
            f"at {limits} for this user. Remedy: raise ulimit -u or pids.max of the control "
            "group, or set machine.threads lower."
        )
    finally:
        end.set()
        for thread in started:
            thread.join()
    return None


def _full(folder: Path, remedy: str) -> str | None:
    with suppress(OSError):  # a missing folder is no obstacle
        free = shutil.disk_usage(folder).free
        if free < _LEAST_BYTES:
            return f"{folder} is full: {free} bytes are free. Remedy: {remedy}."
    return None
