"""How a failing worker reports the reason to its supervisor.

A supervisor only waits, and slow imports would delay the run, so nothing here imports torch.
"""

import ctypes
import errno
import os
import re
import signal
import sys
import time
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from schemas.base import Schema
from schemas.errors import Diverged, PeerLost, Refusal, Unsupported
from schemas.results import Status
from schemas.results.common import Ending
from transformer_core.common.endings import REMEDIES
from transformer_core.common.files import write_text
from transformer_core.parallel import nvml
from transformer_core.run import oom

_SAME_GPU = "Duplicate GPU detected"
"""NCCL's message (init.cc) for two ranks of a communicator on one device."""

_OF_PEERS = ("gloo", "NCCL", "onnection")
"""Words of errors about peers that :mod:`transformer_core.parallel.lost_ranks` did not explain."""

CHECKPOINTS = "checkpoint"  # folder of a run's checkpoints, next to its results

# Opened here rather than where it is used: little is allowed between fork and exec.
_LIBRARY = ctypes.CDLL(None)

# A failing rank takes its peers down: their reports are consequences.
_TELLING: tuple[Status, ...] = ("unsupported", "oom", "diverged", "failed")


Record = TypeVar("Record", bound=Schema)
ENDS = ("status", "reason", "traceback")  # fields of a result that describe how it ended


class Outcome(Ending):
    """How unfinished workers ended."""

    traceback: str | None = None
    rank: int | None = None  # the process that reports it; null for its supervisor
    time: float = 0.0  # when it was reported, in seconds since the epoch
    again: bool = False  # whether another attempt may succeed: the result is not final
    peer_lost: bool = False  # whether it was reported as the loss of another process
    signal: int = 0
    """The signal that ended the processes, or one of them, before it could report a reason, else 0."""

    @property
    def about_peers(self) -> bool:
        """Whether it only says that another process is gone or silent, not why."""
        said = self.reason or ""
        return self.status == "failed" and (
            self.peer_lost or any(word in said for word in _OF_PEERS)
        )

    @classmethod
    def of(cls, error: BaseException, rank: int | None = None) -> Self:
        """The outcome of an exception in ``rank``."""
        status, reason = classify(error)
        again = status == "failed" and mendable_reason(error) is not None
        # Without a traceback if the machine, a file or a peer is at fault, rather than a program.
        told = status == "failed" and not again
        text = "".join(tracebacks.format_exception(error)) if told else None
        return cls(
            status=status,
            reason=reason,
            traceback=text,
            rank=rank,
            time=time.time(),
            again=again,
            peer_lost=isinstance(error, PeerLost),
        )

    def result(self, model: type[Record], **known: Any) -> Record:
        """A result with this outcome and the ``known`` fields; all others are null or empty
        lists."""
        fields: dict[str, Any] = {
            name: None if type(None) in get_args(field.annotation) else []
            for name, field in model.model_fields.items()
            if field.is_required()
        }
        fields |= {name: getattr(self, name) for name in ENDS if name in model.model_fields}
        return model.model_validate(fields | known)


def classify(error: BaseException) -> tuple[Status, str]:
    if reason := oom.reason_of(error):
        return "oom", reason
    if _SAME_GPU in str(error):
        return "unsupported", (
            "NCCL refuses two ranks on one GPU: set machine.devices_per_node to the number of "
            f"GPUs, or machine.device: cpu. It says: {_said(error)}"
        )
    if reason := nvml.busy(error):
        return "unsupported", reason
    match error:
        case Unsupported():
            return "unsupported", str(error)
        case Diverged():
            return "diverged", str(error)
        case _:
            return "failed", mendable_reason(error) or _said(error)


_STACK = re.compile(
    r"\n\s*(Exception raised from|C\+\+ CapturedTraceback|CUDA kernel errors might)"
)
"""Where torch adds a stack or general advice to a message."""
_LONGEST = 600  # characters of a message


def _said(error: BaseException) -> str:
    """The type and message of an error on one line: the cause may stand below the first line."""
    text = " ".join(_STACK.split(str(error))[0].split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(said) > _LONGEST:
        said = f"{said[:_LONGEST]} …"
    return said


def write_outcome(folder: Path, rank: int, error: BaseException) -> None:
    write_text(folder / f"outcome-{rank}.json", Outcome.of(error, rank).model_dump_json())


def end_with_parent(parent: int | None = None) -> None:
    """Makes Linux kill this process when its parent ends, so that a killed run leaves none. With the
    process id of the ``parent``, also if it has ended already."""
    if sys.platform == "linux":
        _LIBRARY.prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
        if parent not in (None, os.getppid()):
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def supervised(folder: Path) -> Iterator[None]:
    """Runs a worker, which ends with its supervisor and records an error in ``folder``."""
    # Imported here: a supervisor does not need torch.
    from transformer_core.parallel import lost_ranks

    def leave(error: Exception) -> None:
        write_outcome(folder, int(os.environ.get("RANK", "0")), error)

    end_with_parent()
    lost_ranks.report = leave
    try:
        yield
    except Exception as error:
        # The supervisor turns this into a status. Peers waiting for this rank must not hang, so the
        # process ends immediately, without waiting for the process group.
        explained = lost_ranks.explain(error)
        # An error that says why itself, such as NCCL's lack of memory, is the better explanation.
        said = error if classify(error)[0] != "failed" or mendable_reason(error) else explained
        leave(said)
        if isinstance(said, PeerLost):  # the log tells where this rank waited, the result does not
            tracebacks.print_exception(said)
        sys.stderr.flush()
        os._exit(1)


def read_outcomes(folder: Path) -> Outcome | None:
    """The outcome that explains the others: by the most telling status, then one that is about itself
    rather than about peers, then by time: clocks of hosts may differ."""
    outcomes = [
        Outcome.model_validate_json(path.read_bytes()) for path in folder.glob("outcome-*.json")
    ]
    telling = _TELLING.index
    return min(outcomes, key=lambda o: (telling(o.status), o.about_peers, o.time), default=None)


def clear_outcomes(folder: Path) -> None:
    for path in folder.glob("outcome-*.json"):
        path.unlink()


AGAIN = "The same command tries again."
_IN_TEXT = re.compile(r"os error (\d+)|Os \{ code: (\d+)")
"""How Rust libraries print the numbers of system errors."""
_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")


def mendable_reason(error: BaseException) -> str | None:
    """The cause and its remedy if another attempt may succeed; else None."""
    number = _number(error)
    if number is not None:
        said = str(error).strip().split("\n")[0]
        remedy = REMEDIES.get(number, "fix the cause of this system error")
        return f"{said}. Remedy: {remedy}. {AGAIN}"
    if isinstance(error, Refusal):
        return f"{error}\n{AGAIN}"  # A remedy may end with a command.
    if isinstance(error, PeerLost):
        return f"{error}. {AGAIN}"
    if "/dev/shm" in (said := _said(error)) and "No space left" in said:  # NCCL's
        remedy = "make room in /dev/shm, or give it more (containers: --shm-size)"
        return f"{said}. Remedy: {remedy}. {AGAIN}"
    return None


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if isinstance(error, RuntimeError) and any(words in text for words in _NO_THREAD):
        return errno.EAGAIN
    found = _IN_TEXT.search(text) if type(error).__name__ == "SafetensorError" else None
    return int(found[1] or found[2]) if found else None
