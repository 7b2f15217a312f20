"""How a script is started, and the messages between its process and the coordinator.

Every message is one line of JSON on a local socket: nothing that arrives is ever executed. Only the
standard library is imported here: the user's script may have modules of any other name.
"""

import json
import select
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Boundary = Literal["optimizer", "backward"]

UNOBSERVED = "cannot be observed: "
"""Prefix of a side's message about a script whose training it cannot observe."""


@dataclass(frozen=True)
class Order:
    """The order for one process of a side."""

    side: str
    """Name of the side."""
    command: tuple[str, ...]
    """Script and its arguments; ``-m`` and a module instead of a file work too."""
    directory: str
    """Working directory of the script."""
    socket: str
    """Where the coordinator listens."""
    record: str
    """Folder for what the certificate compares."""
    techniques: tuple[str, ...] = ()
    """Changes to apply, by their names in the registry."""
    seed: int = 0
    """Number that is added to every seed that the script sets."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts observed of the script before, for techniques that need them."""
    boundary: Boundary = "optimizer"
    """Where a step ends."""
    noise: float = 0.0
    """Relative size of random changes to the first weights: a measured floor of rounding."""
    dropout: bool = True
    """Whether dropout layers drop."""
    profiled: bool = False
    """Whether some steps are to be recorded by torch.profiler."""
    whole: bool = False
    """Whether sharded tensors are recorded whole, for comparison with another number of ranks."""

    def write(self, file: Path) -> None:
        """Write the order for the process that carries it out."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Order":
        """The order in ``file``."""
        found = json.loads(file.read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("command", "techniques")}
        return cls(**found | lists)


class Line:
    """One end of a connection that carries a JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send an object."""
        self._socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait, blocked, for the next object; EOFError if the other end is gone, TimeoutError
        after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._read:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionError:
                more = b""
            if not more:
                raise EOFError("the other end is gone")
            self._read += more
        text, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def connect(path: str) -> Line:
    """A connection to the coordinator that listens at ``path``."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return Line(connection)
