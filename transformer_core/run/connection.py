"""A process's connection to its coordinator. Uses the standard library alone: a user's script, which
runs in such a process, may have modules of any name."""

import json
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any


def connect(file: Path) -> Connection:
    """A connection to the coordinator that ``file`` names."""
    known = json.loads(file.read_text(encoding="utf-8"))
    address = known["address"]
    place = address if isinstance(address, str) else tuple(address)
    connection = Client(place, authkey=bytes.fromhex(known["key"]))
    assert isinstance(connection, Connection)
    return connection


def send(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())
