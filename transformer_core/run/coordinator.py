"""Turns: several programs are ready on one machine, and only one of them works at a time.

The supervisor runs the coordinator. Every process of every side connects to it and waits, blocked
in the kernel, for its next task: waiting in a barrier of the process group instead would keep a GPU
or a core busy. Tasks and answers are sent as JSON. Nothing here imports torch.
"""

import errno
import json
import os
import resource
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
    wait,
)
from pathlib import Path
from queue import Empty, Queue
from typing import Any, ClassVar

from pydantic import ValidationError

from schemas.results import Probe, Provenance, Topology
from schemas.results.runs import StepKernels
from transformer_core.common.files import write_text
from transformer_core.common.records import adapter
from transformer_core.run.connection import connect
from transformer_core.run.host_processes import own_address

COORDINATOR = "coordinator.json"
"""Name of the file with the coordinator's address, in the folder of a comparison."""
POLL_SECONDS = 0.2
"""Seconds between two checks that the awaited processes are still running."""
_OF_SOCKETS = "turns-"  # beginning of the names of folders with a socket


@dataclass(frozen=True)
class Hello:
    """The first message of a process: its side, its rank and its topology."""

    side: str
    rank: int
    topology: Topology | None = None  # null for a user's script
    ranks: int | None = None
    """Ranks of a user's script, which its launcher alone knows for certain."""


@dataclass(frozen=True)
class Report:
    """A rank's report of its turn; the counts are those of all ranks."""

    seconds: float
    tokens: int
    padded_tokens: int
    input_wait_seconds: float


class Task:
    """A task for a side. Measurements add their own tasks: dataclasses of JSON values."""

    answer: ClassVar[Any] = None  # type of the answer of each rank
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        Task._kinds[cls.__name__] = cls


@dataclass(frozen=True)
class Turn(Task):
    """Task to train: ``lead`` untimed steps, on a CPU with ``lead_batch`` of a batch, then ``steps``
    timed ones."""

    lead: int
    steps: int
    lead_batch: float = 1.0
    answer: ClassVar[Any] = Report


@dataclass(frozen=True)
class ProbeDevices(Task):
    """Task to measure the speed of this rank's devices."""

    answer: ClassVar[Any] = list[Probe]


@dataclass(frozen=True)
class TellMemory(Task):
    """Task to report the largest memory peak of this rank's devices, in bytes, or null."""

    answer: ClassVar[Any] = int | None


@dataclass(frozen=True)
class TellKernels(Task):
    """Task to report the kernels of the first step."""

    answer: ClassVar[Any] = StepKernels | None


@dataclass(frozen=True)
class TellProvenance(Task):
    """Task to report the provenance of this job: its command and its start."""

    command: str
    started: datetime
    answer: ClassVar[Any] = Provenance


@dataclass(frozen=True)
class Leave(Task):
    """Task to end."""


class SideEndedError(Exception):
    def __init__(self, side: str, reason: str) -> None:
        super().__init__(f"{side} {reason}")
        self.side = side
        self.reason = reason


class Turns:
    """A process's connection to the coordinator that ``file`` names."""

    def __init__(self, file: Path, hello: Hello) -> None:
        self._connection = connect(file)
        self._connection.send_bytes(adapter(Hello).dump_json(hello))
        self._task: Task = Leave()

    def next(self) -> Task:
        """Wait, blocked, for the next task."""
        message = json.loads(self._connection.recv_bytes())
        self._task = adapter(Task._kinds[message["kind"]]).validate_python(message["task"])
        return self._task

    def answer(self, value: Any) -> None:
        self._connection.send_bytes(adapter(self._task.answer).dump_json(value))


class Coordinator:
    """The supervisor's end. ``file`` gives the processes its address and key.

    Processes on this host connect through a Unix socket; with ``several_hosts`` all connect over the
    network.

    Methods that wait call their ``check`` regularly; it raises :class:`SideEndedError` when a side
    can no longer connect or answer.
    """

    def __init__(self, file: Path, several_hosts: bool) -> None:
        self.file = file
        self._key = secrets.token_bytes(32)
        self._folder: Path | None = None  # that of the socket
        with suppress(OSError, ValueError, TypeError, KeyError):
            left = Path(announced(file)["address"]).parent  # of a job that was killed
            if left.name.startswith(_OF_SOCKETS):
                shutil.rmtree(left, ignore_errors=True)
        if several_hosts:
            # On all interfaces: only the other hosts know through which one they reach this host.
            self._listener = Listener(("", 0), "AF_INET", backlog=64)
            address: Any = [own_address(), self._listener.address[1]]
        else:
            self._listener = _on_this_host()
            address = self._listener.address
            self._folder = Path(address).parent
        file.parent.mkdir(parents=True, exist_ok=True)
        self._known = {"address": address, "key": self._key.hex()}
        self.announce({})
        self._arrivals: Queue[tuple[Hello, Connection] | OSError] = Queue()
        self._members: dict[str, dict[int, Connection]] = {}
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self.dismiss()
        with suppress(OSError):
            Client(self._listener.address).close()  # ends the thread, which waits for a connection
        self._listener.close()
        self.file.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def announce(self, session: dict[str, Any]) -> None:
        """Tells the processes of a session, also those on other hosts, what they share, before the
        first of them starts."""
        previous = os.umask(0o177)  # only this user may connect
        try:
            write_text(self.file, json.dumps(self._known | session))
        finally:
            os.umask(previous)

    def gather(
        self, ranks: dict[str, int], check: Callable[[], None], timeout: float
    ) -> dict[str, tuple[Topology, float]]:
        """Waits until all ranks of all sides are ready; returns the topology of each side, and the
        time, by :func:`time.monotonic`, when its last rank connected. If ``check`` removes a side
        from ``ranks``, it is no longer awaited. A process that knows the number of its ranks corrects
        it there."""
        self._members = {side: {} for side in ranks}
        found: dict[str, tuple[Topology, float]] = {}
        end = time.monotonic() + timeout
        while missing := [s for s, count in ranks.items() if len(self._members[s]) < count]:
            try:
                arrival = self._arrivals.get(timeout=POLL_SECONDS)
            except Empty:
                check()
                if time.monotonic() > end:
                    raise SideEndedError(
                        missing[0], f"was not ready after {timeout:g} s (machine.timeout)"
                    ) from None
                continue
            if isinstance(arrival, OSError):
                raise arrival
            hello, connection = arrival
            self._members[hello.side][hello.rank] = connection
            if hello.ranks is not None and hello.side in ranks:
                ranks[hello.side] = hello.ranks
            if hello.topology is not None:
                first = hello.rank == 0 or hello.side not in found
                topology = hello.topology if first else found[hello.side][0]
                found[hello.side] = topology, time.monotonic()
        return found

    def arrived(self, side: str) -> int:
        """Ranks of ``side`` that have connected so far."""
        return len(self._members.get(side, {}))

    def ask(self, side: str, task: Task, check: Callable[[], None], timeout: float) -> list[Any]:
        """Sends a task to a side and returns the answer of every rank, in the order of ranks."""
        members = self._members[side]
        answers: dict[int, Any] = {}
        end = time.monotonic() + timeout
        try:
            for connection in members.values():
                with suppress(OSError):  # It has left, perhaps after reporting the reason.
                    connection.send_bytes(_message(task))
            while len(answers) < len(members):
                waiting = {c: rank for rank, c in members.items() if rank not in answers}
                for ready in wait(list(waiting), POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    text = ready.recv_bytes()
                    answers[waiting[ready]] = adapter(task.answer).validate_json(text)
                check()
                if time.monotonic() > end:
                    raise SideEndedError(
                        side, f"did not answer within {timeout:g} s (machine.timeout)"
                    )
        except (EOFError, OSError):
            raise SideEndedError(side, "ended before its turn was over") from None
        return [answers[rank] for rank in sorted(answers)]

    def unread(self, side: str) -> Iterator[Any]:
        """Messages from a side that have arrived and that nobody has read."""
        for connection in self._members[side].values():
            with suppress(EOFError, OSError):
                while connection.poll():
                    yield json.loads(connection.recv_bytes())

    def dismiss(self, side: str | None = None) -> None:
        """Dismisses the processes of one side, or of all: waiting processes then end."""
        for name in [side] if side is not None else list(self._members):
            for connection in self._members.pop(name, {}).values():
                with suppress(OSError):
                    connection.send_bytes(_message(Leave()))
                connection.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # Further attempts would fail at once, again and again.
                    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                    said = f"{error.strerror}: this process may open at most {limit}"
                    self._arrivals.put(OSError(error.errno, said))
                    return
                continue
            # In a separate thread: a stranger that sends nothing must not keep ranks waiting.
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            hello = adapter(Hello).validate_json(connection.recv_bytes())
        except (AuthenticationError, EOFError, OSError, ValidationError):
            connection.close()
        else:
            self._arrivals.put((hello, connection))


def _on_this_host() -> Listener:
    """A listener whose socket has a folder of its own. Jobs end without Python's shutdown, so the folder
    that multiprocessing would make for it would stay."""
    for place in (None, "/tmp"):  # TMPDIR may be too long for the name of a socket
        folder = tempfile.mkdtemp(prefix=_OF_SOCKETS, dir=place)
        try:
            return Listener(f"{folder}/listener", "AF_UNIX", backlog=64)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            refused = error
    raise refused


def announced(file: Path) -> dict[str, Any]:
    """The address of the coordinator of ``file``, and what the processes of its session share."""
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _message(task: Task) -> bytes:
    kind: Any = type(task)
    value = adapter(kind).dump_python(task, mode="json")
    return json.dumps({"kind": kind.__name__, "task": value}).encode()
