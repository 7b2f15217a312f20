"""Two hosts on one machine: network namespaces joined by a rate-limited pair of devices (Linux).

Everything is made for this process and vanishes with it: the kernel removes a namespace, and the
devices in it, when no process and no open file needs it. Where this user may not make network
namespaces, a user namespace around them gives the right to.

``python -m transformer_core.run.namespaces`` tries it out.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.config.parallel import show_bandwidth
from transformer_core.common.endings import program
from transformer_core.parallel.link_times import burst_bytes

DEVICE = "link0"
"""Name of the network device in either namespace."""

ADDRESSES = ("10.99.0.1", "10.99.0.2")
"""Addresses of the two hosts, invisible from outside."""

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of sched.h
_QUEUE = "50ms"
_LIBRARY = ctypes.CDLL(None, use_errno=True)


class NamespacesUnavailableError(Exception):
    """This machine, or this user on it, cannot make linked namespaces; the text says why."""


@dataclass(frozen=True)
class Namespace:
    """One of the two hosts."""

    address: str
    """Its address on the link."""
    file: int
    """Open file that holds the namespace."""

    def enter(self) -> None:
        """Moves this thread into it; for a process between fork and exec."""
        if _LIBRARY.setns(self.file, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def join_two(bandwidth: float) -> tuple[Namespace, Namespace]:
    """Two namespaces whose link lets ``bandwidth`` bits per second through in each direction.

    This process must have one thread only, and stays in the second namespace. Raises
    NamespacesUnavailableError.
    """
    if sys.platform != "linux":
        raise NamespacesUnavailableError(f"network namespaces are Linux's, this is {sys.platform}")
    for tool in ("ip", "tc"):
        if _tool(tool) is None:
            raise NamespacesUnavailableError(f"the command {tool} is missing (package iproute2)")
    try:
        first, second = (Namespace(address, _new_namespace()) for address in ADDRESSES)
        _run("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", "peer0")
        _run("ip", "link", "set", "peer0", "netns", f"/proc/{os.getpid()}/fd/{first.file}")
        _run("ip", "link", "set", "peer0", "name", DEVICE, within=first)
        for namespace in (first, second):
            _set_up(namespace, bandwidth)
    except OSError as error:
        raise NamespacesUnavailableError(
            f"{error.filename or ''} {error.strerror}".strip()
        ) from None
    return first, second


def refusal() -> str | None:
    """The reason why :func:`join_two` is impossible here; null where it works."""
    # In a process of its own: it leaves its namespace for good.
    done = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, check=False, timeout=60
    )
    return None if done.returncode == 0 else done.stderr.strip() or "it failed without a word"


def _new_namespace() -> int:
    """Enter a new network namespace; an open file that holds it."""
    if _LIBRARY.unshare(_NEW_NETWORK):
        user, group = os.getuid(), os.getgid()
        if _LIBRARY.unshare(_NEW_USER | _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "network namespaces are not allowed here")
        for name, text in [
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ]:
            with open(f"/proc/self/{name}", "w") as stream:  # noqa: PTH123
                stream.write(text)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _set_up(namespace: Namespace, bandwidth: float) -> None:
    _run("ip", "link", "set", "lo", "up", within=namespace)
    _run("ip", "address", "add", f"{namespace.address}/24", "dev", DEVICE, within=namespace)
    _run("ip", "link", "set", DEVICE, "up", within=namespace)
    burst = f"{burst_bytes(bandwidth)}b"
    limit = ["rate", f"{round(bandwidth)}bit", "burst", burst, "latency", _QUEUE]
    _run("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit, within=namespace)


def _run(tool: str, *arguments: str, within: Namespace | None = None) -> None:
    done = subprocess.run(
        [_tool(tool) or tool, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        preexec_fn=within.enter if within else None,
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise NamespacesUnavailableError(f"{tool} {' '.join(arguments)}: {said}")


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Make a link and end; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.namespaces",
        description="Check whether this machine can emulate two hosts with a limited link.",
    )
    parser.add_argument("--bandwidth", type=float, default=1e9, help="bits per second")
    bandwidth = parser.parse_args(arguments).bandwidth
    try:
        join_two(bandwidth)
    except NamespacesUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"possible: two hosts with {show_bandwidth(bandwidth)} between them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
