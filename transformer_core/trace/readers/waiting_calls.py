"""Calls of the runtime of a device: those in which the host waits for it, those that launch."""

import re
from functools import cache

_WAIT_NAME = re.compile(r"(cuda|cu|hip)\w*Synchronize\w*|(cuda|hip)Memcpy(_v\w+)?")
LAUNCH_NAME = re.compile(r"(cuda|cu|hip)(Ext)?(Module)?(Graph)?Launch\w*")


@cache
def launches(name: str) -> bool:
    """Whether a call launches a kernel or a graph."""
    return bool(LAUNCH_NAME.match(name))


@cache
def waits(name: str) -> bool:
    """Whether a call of the runtime returns only when a device has done its work."""
    return bool(_WAIT_NAME.fullmatch(name))
