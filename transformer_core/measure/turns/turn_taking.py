"""Taking turns: several trainings are ready on one machine, and one of them at a time works.

The supervisor keeps the desk; every process of every side takes a seat at it, and waits there,
blocked in the kernel, until it is asked to do something. Nothing here imports torch.

A side that waited in a barrier of its process group instead would keep a GPU or a core busy.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from schemas.results import Topology
from transformer_core.common.files import write_text
from transformer_core.run.host_processes import own_address

POLL_SECONDS = 0.2
"""How often the supervisor looks whether the processes that it waits for are still there."""


@dataclass(frozen=True)
class Hello:
    """The first words of a process: which rank of which side it is, and what it runs on."""

    side: str
    rank: int
    topology: Topology


@dataclass(frozen=True)
class Turn:
    """To train: ``lead`` steps that are not timed, then ``steps`` that are."""

    lead: int
    steps: int


@dataclass(frozen=True)
class Report:
    """What a rank says of its turn; the counts are those of all ranks."""

    seconds: float
    tokens: int
    padded_tokens: int
    input_wait_seconds: float


@dataclass(frozen=True)
class ProbeDevices:
    """To measure the speed of the own devices: the answer is a list of Probe."""


@dataclass(frozen=True)
class TellMemory:
    """To tell the largest peak of memory of the own devices, in bytes or null."""


@dataclass(frozen=True)
class TellKernels:
    """To tell what computed the first step: the answer is StepKernels or null."""


@dataclass(frozen=True)
class TellProvenance:
    """To tell where the numbers of this job come from: its command and its start."""

    command: str
    started: datetime


@dataclass(frozen=True)
class Leave:
    """To end."""


class SideEndedError(Exception):
    """A side does not answer any more."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(f"{side} {reason}")
        self.side = side
        self.reason = reason


class Seat:
    """A process at the desk that ``file`` names."""

    def __init__(self, file: Path, hello: Hello) -> None:
        self._connection = connect(file)
        self._connection.send(hello)

    def next_task(self) -> Any:
        """Wait, blocked, for the next task."""
        return self._connection.recv()

    def answer(self, value: Any) -> None:
        """Give the result of a task."""
        self._connection.send(value)


class Desk:
    """The supervisor's end. ``file`` tells the processes where it is, and the key to it.

    Processes on this host come through a socket of the file system; with ``several_hosts`` all
    come over the network.

    A check, where one is asked for, is called again and again while the desk waits; it raises
    :class:`SideEndedError` when a side cannot come or answer any more.
    """

    def __init__(self, file: Path, several_hosts: bool) -> None:
        self.file = file
        key = secrets.token_bytes(32)
        if several_hosts:
            # All interfaces: only the other hosts know by which of them they reach this one.
            self._listener = Listener(("", 0), "AF_INET", backlog=64, authkey=key)
            address: Any = [own_address(), self._listener.address[1]]
        else:
            self._listener = Listener(None, "AF_UNIX", backlog=64, authkey=key)
            address = self._listener.address
        file.parent.mkdir(parents=True, exist_ok=True)
        self._says = {"address": address, "key": key.hex()}
        self.announce(1)
        self._arrivals: Queue[tuple[Any, Connection]] = Queue()
        self._seats: dict[str, dict[int, Connection]] = {}
        self._open = True
        threading.Thread(target=self._welcome, daemon=True).start()

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self.dismiss()
        self._listener.close()
        self.file.unlink(missing_ok=True)

    def announce(self, session: int) -> None:
        """Tell those who come which session this is, from 1: before the first of them starts."""
        # Only this user may take a seat: what comes through a connection is unpickled.
        previous = os.umask(0o177)
        try:
            write_text(self.file, json.dumps(self._says | {"session": session}))
        finally:
            os.umask(previous)

    def seat(
        self, ranks: Mapping[str, int], check: Callable[[], None], timeout: float
    ) -> dict[str, tuple[Topology, float]]:
        """Wait until all ranks of all sides sit; the topology of each side, and when its last rank
        came by :func:`time.monotonic`."""
        self._seats = {side: {} for side in ranks}
        found: dict[str, tuple[Topology, float]] = {}
        end = time.monotonic() + timeout
        while missing := [s for s, count in ranks.items() if len(self._seats[s]) < count]:
            try:
                hello, connection = self._arrivals.get(timeout=POLL_SECONDS)
            except Empty:
                check()
                if time.monotonic() > end:
                    raise SideEndedError(
                        missing[0], f"was not ready after {timeout:g} s (machine.timeout)"
                    ) from None
                continue
            self._seats[hello.side][hello.rank] = connection
            if hello.rank == 0 or hello.side not in found:
                found[hello.side] = hello.topology, time.monotonic()
            found[hello.side] = found[hello.side][0], time.monotonic()
        return found

    def ask(self, side: str, task: Any, check: Callable[[], None], timeout: float) -> list[Any]:
        """What every rank of a side answers to a task, in the order of ranks."""
        seats = self._seats[side]
        answers: dict[int, Any] = {}
        end = time.monotonic() + timeout
        try:
            for connection in seats.values():
                connection.send(task)
            while len(answers) < len(seats):
                waiting = {c: rank for rank, c in seats.items() if rank not in answers}
                for ready in wait(list(waiting), POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    answers[waiting[ready]] = ready.recv()
                check()
                if time.monotonic() > end:
                    raise SideEndedError(
                        side, f"did not answer within {timeout:g} s (machine.timeout)"
                    )
        except (EOFError, OSError):
            raise SideEndedError(side, "ended before its turn was over") from None
        return [answers[rank] for rank in sorted(answers)]

    def dismiss(self) -> None:
        """Let all processes go: those that wait end by themselves."""
        for seats in self._seats.values():
            for connection in seats.values():
                try:
                    connection.send(Leave())
                except OSError:
                    continue
                finally:
                    connection.close()
        self._seats = {}

    def _welcome(self) -> None:
        while self._open:
            try:
                connection = self._listener.accept()
                self._arrivals.put((connection.recv(), connection))
            except (AuthenticationError, EOFError, OSError):
                continue


def announced_session(file: Path) -> int:
    """The number of the session that the desk in ``file`` has begun."""
    return int(json.loads(file.read_text())["session"])


def connect(file: Path) -> Connection:
    """A connection to the desk that ``file`` names."""
    desk = json.loads(file.read_text())
    address = desk["address"]
    place = address if isinstance(address, str) else tuple(address)
    connection = Client(place, authkey=bytes.fromhex(desk["key"]))
    assert isinstance(connection, Connection)
    return connection
