"""How a job ends that cannot do what it was asked for: with a message, not with a traceback."""

import errno
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from schemas.errors import Refusal

CHANGES_NO_RESULT = True  # it says what is wrong

REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room within your quota there",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "let the host have more open files",
    errno.EACCES: "give permission",
    errno.EPERM: "give permission",
    errno.EROFS: "make the file system writable",
    errno.EIO: "look at the disk, which cannot be read or written there",
    errno.EAGAIN: "allow more processes and threads (ulimit -u, pids.max of the control group)",
    errno.ENOMEM: "free some memory",
    errno.ENOENT: "give the path of a file that is there, or make it",
}
"""What to do about an error of the system."""


def in_words(error: Exception) -> str:
    """What an error says; one of the system with the remedy."""
    if not isinstance(error, OSError):
        return str(error)
    remedy = REMEDIES.get(error.errno or 0, "see what the system says")
    return f"{error}\n    remedy: {remedy}, then give the same command again"


def program(main: Callable[..., Any]) -> Callable[..., int]:
    """The ``main`` of a job, which returns 0, 1 or what it returned itself; what it refuses, and
    what the system refuses, is printed."""

    @wraps(main)
    def run(*arguments: Any, **options: Any) -> int:
        try:
            return main(*arguments, **options) or 0
        except Refusal as error:
            print(error, file=sys.stderr)
        except OSError as error:
            print(in_words(error), file=sys.stderr)
        return 1

    return run
