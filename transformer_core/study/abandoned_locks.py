"""After any kill the same command goes on: locks of a Snakemake that is gone are removed.

Snakemake keeps a list of the files that it works on in ``.snakemake/locks``, and refuses to start
where it finds one: it cannot know whose it is. So every Snakemake that works on a study lays a card
with its process into ``.snakemake/at-work``, and takes it away at its end. Where locks lie and
nobody whose card is there is alive, they are removed.

A process of this host is looked up. Of one on another host of a shared file system, or in another
container, only the card can be seen: its owner writes on it every few seconds, and a card that
stays as it is for :data:`PATIENCE` belongs to nobody. An owner that was merely asleep finds its
card gone when it wakes up, and ends.
"""

import atexit
import fcntl
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from schemas.base import Schema
from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it decides whether work may begin

FOLDER = Path(".snakemake")
BEAT = 5.0
"""Seconds between two signs of life."""
PATIENCE = 30.0
"""Seconds without one after which a process elsewhere is taken to be gone."""


class Card(Schema):
    """A Snakemake at work on a study."""

    host: str
    """Name of its host."""
    kernel: str
    """Which boot of which kernel, and which numbering of processes: a container has its own."""
    pid: int
    """Its process there."""
    began: int
    """When the process started, in ticks since the boot; a number that is used again starts
    later."""
    signs: int = 0
    """Signs of life so far."""


def sign_in(folder: Path = FOLDER, patience: float = PATIENCE, beat: float = BEAT) -> Path:
    """Lay down a card for this process until it ends, after removing locks that nobody holds any
    more; the card.

    Locks stay where a process is alive that could hold them, and where no card says whose they are.
    """
    cards = folder / "at-work"
    mine = Card(host=socket.gethostname(), kernel=_kernel(), pid=os.getpid(), began=_began("self"))
    path = cards / f"{uuid.uuid4().hex}.json"
    with _one_at_a_time(cards):
        others = sorted(cards.glob("*.json"))
        locks = sorted((folder / "locks").glob("*.lock"))
        gone = [other for other in others if _gone(other, patience if locks else 0.0)]
        if locks and others and len(gone) == len(others):
            for lock in locks:
                lock.unlink(missing_ok=True)
        for other in gone:
            other.unlink(missing_ok=True)
        write_text(path, mine.model_dump_json())
    atexit.register(path.unlink, missing_ok=True)
    threading.Thread(target=_live, args=(path, mine, beat), daemon=True).start()
    return path


@contextmanager
def _one_at_a_time(cards: Path) -> Iterator[None]:
    cards.mkdir(parents=True, exist_ok=True)
    with (cards / ".lock").open("a") as lock:
        with suppress(OSError):  # not every shared file system has such locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _gone(path: Path, patience: float) -> bool:
    """Whether the owner of a card has ended; not so where that would take longer than patience."""
    try:
        text = path.read_text(encoding="utf-8")
        card = Card.model_validate_json(text)
    except FileNotFoundError:
        return True
    except (OSError, ValidationError):
        return False
    if card.kernel == _kernel():
        try:
            return _began(str(card.pid)) != card.began
        except OSError:
            return True
    if not patience:
        return False
    print(
        f"Waiting {patience:.0f} s for a sign of life from process {card.pid} on {card.host}, "
        "which works on this study or was killed",
        file=sys.stderr,
    )
    end = time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(min(1.0, patience))
        with suppress(FileNotFoundError):
            if path.read_text(encoding="utf-8") != text:
                return False
            continue
        return True
    return True


def _live(path: Path, card: Card, beat: float) -> None:
    """Give signs of life; end this process if its card is gone, since others work here then."""
    while True:
        time.sleep(beat)
        card = card.model_copy(update={"signs": card.signs + 1})
        try:
            with path.open("r+", encoding="utf-8") as file:
                file.write(card.model_dump_json())  # never shorter than before
        except FileNotFoundError:
            print(f"{path} is gone: another Snakemake has taken over", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        except OSError:
            continue  # a full disk, say: the next sign may come through


def _kernel() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} without /proc"


def _began(pid: str) -> int:
    """When a process of this host started, in ticks since the boot; OSError if it has ended."""
    if not Path("/proc/self/stat").exists():
        os.kill(os.getpid() if pid == "self" else int(pid), 0)
        return 0
    # The name, in parentheses, may hold anything.
    fields = Path("/proc", pid, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[19])
