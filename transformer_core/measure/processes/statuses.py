"""How a worker that did not finish tells its supervisor why.

A supervisor waits: what it imports only delays the run, so nothing here imports torch.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.errors import Diverged, PeerLost, Unsupported
from schemas.results import Status
from transformer_core.data.files import write_text
from transformer_core.measure import out_of_memory

CHECKPOINTS = "checkpoint"
"""Folder of a run's checkpoints, beside its results."""

# Opened here and not where it is used: between fork and exec little is allowed.
_LIBRARY = ctypes.CDLL(None)

# A rank that fails takes its peers down with it: what they report is a consequence.
_TELLING: tuple[Status, ...] = ("unsupported", "oom", "diverged", "failed")


def classify(error: BaseException) -> tuple[Status, str]:
    """Status and reason of an exception."""
    if reason := out_of_memory.reason_of(error):
        return "oom", reason
    first_line = str(error).strip().split("\n")[0] or type(error).__name__
    match error:
        case Unsupported():
            return "unsupported", str(error)
        case Diverged():
            return "diverged", str(error)
        case PeerLost():
            return "failed", str(error)
        case _:
            return "failed", f"{type(error).__name__}: {first_line}"


def write_outcome(folder: Path, rank: int, error: BaseException) -> None:
    """Leave the end of this rank in ``folder``."""
    status, reason = classify(error)
    record = {
        "status": status,
        "reason": reason,
        "traceback": "".join(traceback.format_exception(error)) if status == "failed" else None,
        "rank": rank,
        "time": time.time(),
    }
    write_text(folder / f"outcome-{rank}.json", json.dumps(record))


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, so that a killed run leaves none."""
    if sys.platform == "linux":
        _LIBRARY.prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


@contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """The life of a worker: it ends with its supervisor, and leaves an error in ``folder``."""
    # Only here: a supervisor has no use for torch.
    from transformer_core.parallel import roll_call

    def leave(error: Exception) -> None:
        write_outcome(folder, int(os.environ.get("RANK", 0)), error)

    end_with_parent()
    roll_call.report = leave
    try:
        yield
    except Exception as error:
        # The supervisor turns this into a status; peers that wait for this rank must not hang,
        # so the process ends here and now, without waiting for the process group.
        leave(roll_call.explain(error))
        sys.stderr.flush()
        os._exit(1)


def read_outcomes(folder: Path) -> dict[str, Any] | None:
    """The end that explains the others: the most telling status, then the earliest."""
    records = [json.loads(path.read_text()) for path in folder.glob("outcome-*.json")]
    if not records:
        return None
    return min(records, key=lambda r: (_TELLING.index(r["status"]), r["time"]))


def clear_outcomes(folder: Path) -> None:
    """Forget the ends of earlier attempts."""
    for path in folder.glob("outcome-*.json"):
        path.unlink()
