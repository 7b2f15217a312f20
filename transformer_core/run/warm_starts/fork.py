"""From a fork of the server to the program that was asked for: what a new process would be."""

import json
import os
import random
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from transformer_core.run import quick_start
from transformer_core.run.statuses import end_with_parent
from transformer_core.run.warm_starts.resident_pages import Pages, map_pages

_REQUEST_SECONDS = 5.0


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

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
        """Let go of the streams."""
        for stream in self.streams:
            os.close(stream)


def read_request(connection: socket.socket) -> Request:
    """What a client sends; OSError or ValueError if it sends something else."""
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
    """What imports have made of the server, beside its data."""

    environment: Mapping[str, str]
    """Variables that they have set."""
    pages: Pages
    """Pages of files that they have read."""


def become(request: Request, found: Imported) -> NoReturn:
    """Be the program of ``request``, to its end, in a fork of a server."""
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
