"""How a job ends: with a message instead of a traceback, a count of failed attempts, and the
command that makes its result again.

A job that fails for a reason that may be temporary still leaves a result with that reason, so the
report can be made. It also counts the failed attempts, in a file next to the result. The count is a
parameter of the job's rule: once it has grown, Snakemake makes the result again.
"""

import errno
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from schemas.errors import WHOLE_FILE, ConfigError, ConfigProblem, Refusal
from transformer_core.common.files import write_text

CHANGES_NO_RESULT = True  # it reports errors

REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room within your quota there",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "raise the host's limit on open files (sysctl fs.file-max)",
    errno.EACCES: "give this user permission",
    errno.EPERM: "give this user permission",
    errno.EROFS: "make the file system writable",
    errno.EIO: "look at the disk, which cannot be read or written there",
    errno.EAGAIN: "allow more processes and threads (ulimit -u, pids.max of the control group)",
    errno.ENOMEM: "free some memory",
    errno.EISDIR: "move that folder away",
    errno.ENOTDIR: "move the file in place of a folder away",
    errno.ENOENT: "give the path of an existing file, or create it",
}
"""Remedies for system errors."""


def in_words(error: Exception) -> str:
    """Describes an error; adds the remedy to system errors."""
    if not isinstance(error, OSError):
        return str(error)
    remedy = REMEDIES.get(error.errno or 0, "fix the cause of this system error")
    return f"{error}\n    remedy: {remedy}, then run the same command again"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def program(main: Callable[..., Any]) -> Callable[..., int]:
    """Wraps the ``main`` of a job to return 0, 1 or its own value; prints its refusals and system
    errors."""

    @wraps(main)
    def run(*arguments: Any, **options: Any) -> int:
        try:
            status = main(*arguments, **options) or 0
            reader_left()
            return status
        except Refusal as error:
            print(error, file=sys.stderr)
        except OSError as error:
            if not reader_left():
                print(in_words(error), file=sys.stderr)
        return 1

    return run


def reader_left() -> bool:
    """Whether standard output is a pipe whose reader, such as head, has ended. If so, the rest of the
    output is discarded, so that Python ends silently."""
    if sys.stdout is None:  # closed by the caller: >&-
        return False
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):  # no file, as in tests
        out = sys.stdout.fileno()
        pipe = select.poll()
        pipe.register(out, 0)
        if any(event & select.POLLERR for _, event in pipe.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)
            return True
    return False


def failures(result: str | Path) -> int:
    """Attempts at ``result``, a file or folder, that failed for a reason that may be temporary."""
    try:
        return int(_file(Path(result)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def count_failure(result: str | Path) -> None:
    """Makes the next call of the same command make ``result`` again."""
    write_text(_file(Path(result)), f"{failures(result) + 1}\n")


def _file(result: Path) -> Path:
    return result.with_name(f".{result.name}.failures")


STUDY_OPTIONS = "STUDY_OPTIONS"
"""Environment variable of a job: the options of ``snakemake`` that select its study."""


_WHOLE: dict[tuple[str, ...], int] = {("results", "turns"): 4, ("results", "refined"): 2}
"""Beginnings of paths in folders that a rule makes as a whole, and the lengths of the paths of these."""


def reproducing_command(target: str | Path, forced: str | Path | None = None) -> str:
    """The command that makes ``target``, and makes ``forced`` again even if it is there."""
    made = (Path(file).parts for file in (target, forced) if file is not None)
    words = [shlex.quote(str(Path(*parts[: _WHOLE.get(parts[:2])]))) for parts in made]
    options = os.environ.get(STUDY_OPTIONS, "")
    return f"snakemake --cores all {' --forcerun '.join(words)} {options}".strip()


def damaged(path: str | Path, error: object, field: str = WHOLE_FILE) -> ConfigError:
    """The error for a result that cannot be read, with the command that makes it again."""
    message = unreadable(error) if isinstance(error, OSError) else str(error)
    remedy = remake(path)
    if isinstance(error, FileNotFoundError):
        remedy = f"check the path, or make it: {reproducing_command(path)}"
    return ConfigError([ConfigProblem(str(path), field, None, message, remedy)])


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, without its path: the message names it anyway."""
    reason = getattr(error, "strerror", None)
    return f"cannot be read: {reason.lower() if reason else error}"


def remake(target: str | Path, damaged: str | Path | None = None) -> str:
    """The remedy for a damaged file of the workflow, and for the ``target`` that needs it."""
    return f"make it again: {reproducing_command(target, damaged or target)}"
