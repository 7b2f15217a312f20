"""Two hosts with a limited link between them, emulated on this machine.

``python -m transformer_core.run.linked_hosts`` starts
:mod:`transformer_core.run.host_processes` twice: in two network namespaces joined by a rate-limited
pair of devices (Linux), or, if the link is emulated, without namespaces. With ``--try`` it says
whether namespaces are possible here.

The namespaces vanish with this process: the kernel removes a namespace and its devices when no
process or open file uses it any longer. A user who may not create network namespaces gets the right
in a surrounding user namespace.
"""

import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE, LinkKind, show_bandwidth
from schemas.errors import Refusal
from transformer_core.parallel.link_times import burst_bytes
from transformer_core.run.host_processes import Hosts, listening_on, said
from transformer_core.run.statuses import end_with_parent

DEVICE = "link0"  # name of the network device in either namespace
ADDRESSES = ("10.99.0.1", "10.99.0.2")  # addresses of the two hosts, invisible from outside
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of sched.h
_QUEUE = "50ms"
_LIBRARY = ctypes.CDLL(None, use_errno=True)


class NamespacesUnavailableError(Exception):
    """Linked namespaces are impossible on this machine or for this user; the text says why."""


@dataclass(frozen=True)
class Namespace:
    address: str  # its address on the link
    file: int  # open file that holds the namespace

    def enter(self) -> None:
        """Moves this thread into the namespace; called between fork and exec."""
        if _LIBRARY.setns(self.file, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def join_two(bandwidth: float) -> tuple[Namespace, Namespace]:
    """Two namespaces whose link carries ``bandwidth`` bits per second in each direction.

    This process must have only one thread, and remains in the second namespace. Raises
    NamespacesUnavailableError.
    """
    if sys.platform != "linux":
        raise NamespacesUnavailableError(f"network namespaces need Linux, this is {sys.platform}")
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
    """The reason why :func:`join_two` is impossible here; None if it works. Raises Refusal if that cannot
    be told now."""
    # In a separate process, since it leaves its namespace for good.
    command = [sys.executable, "-m", __name__, "--try"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired as error:
        raise Refusal(
            f"whether two hosts can be linked on this machine is unknown: {shlex.join(command)} did not "
            f"end within {error.timeout:g} seconds\n"
            "    remedy: wait until the machine is less busy, then give the same command again"
        ) from None
    return None if done.returncode == 0 else done.stderr.strip() or "it failed without a message"


def _new_namespace() -> int:
    """Enters a new network namespace; returns an open file that keeps it alive."""
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
    try:
        subprocess.run(
            [_tool(tool) or tool, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            preexec_fn=within.enter if within else None,
        )
    except subprocess.SubprocessError as error:
        raise NamespacesUnavailableError(f"{tool} {' '.join(arguments)}: {said(error)}") from None


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


GRACE = 8.0  # seconds for a host to end by itself after the other one failed
PORT = 29_500  # port of the rendezvous in a namespace, which nothing else uses


@dataclass(frozen=True)
class Linked:
    """Two hosts and the link between them: the first argument of this program, as JSON, before the
    worker's module and its options."""

    processes: int  # on each host
    timeout: float  # seconds that hosts wait for each other
    link: LinkKind  # how the link is made
    bandwidth: float  # bits per second
    gpus: Sequence[str] = ()  # UUIDs of the GPUs that the hosts share out

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", __spec__.name, json.dumps(asdict(self))]


def start(linked: Linked, worker: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    joined: tuple[Namespace | None, ...] = (None, None)
    rendezvous = f"127.0.0.1:{free_port()}"
    if linked.link == "namespaces":
        joined = join_two(linked.bandwidth)
        rendezvous = f"{ADDRESSES[0]}:{PORT}"
    command = [*Hosts(len(joined), linked.processes, linked.timeout).command, *worker]
    hosts = []
    for node, namespace in enumerate(joined):
        environment = os.environ | {"NODE_RANK": str(node), "RENDEZVOUS": rendezvous}
        environment |= {LINK_VARIABLE: linked.link}
        environment |= {HOST_VARIABLE: f"{node} on {socket.gethostname()}"}
        if namespace is not None:
            environment |= listening_on(DEVICE)
            # NCCL would find its peers past the link: by shared memory, or a network that does not
            # belong to the namespace, such as a vendor's plugin, InfiniBand, or NVLink between hosts.
            environment |= {"NCCL_HOSTID": f"host-{node}", "NCCL_NET": "Socket"}
            environment |= {"NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
        if linked.gpus:
            own = slice(node * linked.processes, (node + 1) * linked.processes)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(linked.gpus[own])
        enter = partial(_enter, namespace, os.getpid())
        hosts.append(subprocess.Popen(command, env=environment, preexec_fn=enter))
    return hosts


def wait(hosts: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits for the hosts; if one fails, ends the other. Returns the exit code of the first error, as a
    shell does after a signal, or 0."""
    failed_at, code = float("inf"), 0
    while any(host.poll() is None for host in hosts):
        for host in hosts:
            if host.returncode and not code:
                failed_at, code = time.monotonic(), host.returncode
        if time.monotonic() - failed_at > GRACE:
            # Not with SIGTERM: torchrun would wait for blocked processes. Its processes end with it.
            for host in hosts:
                host.kill()
        time.sleep(0.05)
    code = code or next((host.returncode for host in hosts if host.returncode), 0)
    return code if code >= 0 else 128 - code


def _enter(namespace: Namespace | None, parent: int) -> None:
    """In a host's process, between fork and exec."""
    end_with_parent(parent)
    if namespace is not None:
        namespace.enter()


def free_port() -> int:
    """A port of this host that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    trial = sys.argv[1:] == ["--try"]
    # Only runs give it hosts and a command.
    if not trial and (len(sys.argv) < 3 or not sys.argv[1].startswith("{")):
        sys.exit("usage: python -m transformer_core.run.linked_hosts --try")
    try:
        if trial:
            join_two(1e9)
            print(f"possible: two hosts with {show_bandwidth(1e9)} between them")
            return
        hosts = start(Linked(**json.loads(sys.argv[1])), sys.argv[2:])
    except NamespacesUnavailableError as error:
        sys.exit(str(error))

    def hand_on(number: int, _: object) -> None:
        for host in hosts:
            host.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    sys.exit(wait(hosts))


if __name__ == "__main__":
    main()
