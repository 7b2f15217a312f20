"""Ends that the next attempt could mend: what is wrong with the machine or with a file, not with
what was asked for.

Nothing here imports torch: supervisors use it.
"""

import errno
import re

from schemas.errors import PeerLost, Refusal
from transformer_core.common.endings import REMEDIES

AGAIN = "The same command tries again."
_IN_TEXT = re.compile(r"os error (\d+)|Os \{ code: (\d+)")
"""How libraries in Rust tell the number of an error of the system."""
_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")


def mendable_reason(error: BaseException) -> str | None:
    """What happened and what to do, if another attempt may end otherwise; else None."""
    number = _number(error)
    if number is not None:
        said = str(error).strip().split("\n")[0]
        remedy = REMEDIES.get(number, "see what the system says")
        return f"{said}. Remedy: {remedy}. {AGAIN}"
    if isinstance(error, Refusal):
        return f"{error} {AGAIN}"
    if isinstance(error, PeerLost):
        return str(error)
    return None


def _number(error: BaseException) -> int | None:
    """The number of the system's error behind ``error``."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if isinstance(error, RuntimeError) and any(words in text for words in _NO_THREAD):
        return errno.EAGAIN
    found = _IN_TEXT.search(text) if type(error).__name__ == "SafetensorError" else None
    return int(found[1] or found[2]) if found else None
