"""A program in a fork of a server that has imported what it needs: the side of whoever starts it.

This process stays until the program ends, and stands for it: it hands on its own standard streams,
working folder, environment and the signals that it gets, and ends as the program does. It imports
nothing that takes time. Where anything is odd, there is no warm start, and nothing has happened.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_core.run.warm_starts.places import environment_of, folder_of, server_key, server_owner
from transformer_core.run.warm_starts.imports import is_job

SERVER = "transformer_core.run.warm_starts.server"

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program which does not say otherwise."""
_START_SECONDS = 120.0
"""How long a server may take to begin, with all of its imports on a busy machine."""


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
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            server.connect(str(folder / key))
        except (FileNotFoundError, ConnectionRefusedError):
            _start_server(folder / key, owner, jobs)
            server.connect(str(folder / key))
    return server


def _start_server(path: Path, owner: int, jobs: bool) -> None:
    """Start a server that listens at ``path``; who asks it before it is ready waits."""
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
    """Wait for the program, and end as it ended."""

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            server.sendall(bytes([number]))

    server.settimeout(None)
    for number in ENDING:
        # What was started to ignore it (nohup, the background of a shell) goes on ignoring it.
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
