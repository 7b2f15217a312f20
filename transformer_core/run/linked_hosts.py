"""Two hosts with a limited link between them, made on this machine.

``python -m transformer_core.run.linked_hosts`` starts
:mod:`transformer_core.run.host_processes` twice, each in a network namespace of its
own, or, where the link is only emulated, side by side.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE, LinkKind
from transformer_core.run.host_processes import INTERFACE_VARIABLES, Hosts
from transformer_core.run.namespaces import (
    ADDRESSES,
    DEVICE,
    Namespace,
    NamespacesUnavailableError,
    join_two,
)
from transformer_core.run.statuses import end_with_parent

GRACE = 8.0
"""Seconds that a host has to end by itself after the other one failed."""

PORT = 29_500
"""Port of the rendezvous in a namespace, which nothing else uses."""


@dataclass(frozen=True)
class Linked:
    """Two hosts and the link between them, as this program is told in JSON before the module that
    their processes run and its options."""

    processes: int
    """On each host."""
    timeout: float
    """Seconds that they wait for one another."""
    link: LinkKind
    """How the link is made."""
    bandwidth: float
    """Bits per second."""
    gpus: Sequence[str] = ()
    """UUIDs of the GPUs that the hosts share out."""

    @property
    def command(self) -> list[str]:
        """The start of the command line."""
        return [sys.executable, "-m", __spec__.name, json.dumps(asdict(self))]


def start(linked: Linked, worker: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start both hosts."""
    joined: tuple[Namespace | None, ...] = (None, None)
    rendezvous = f"127.0.0.1:{_free_port()}"
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
            environment |= dict.fromkeys(INTERFACE_VARIABLES, DEVICE)
            # NCCL would find its peers by shared memory, past the link.
            environment |= {"NCCL_HOSTID": f"host-{node}", "NCCL_IB_DISABLE": "1"}
        if linked.gpus:
            own = slice(node * linked.processes, (node + 1) * linked.processes)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(linked.gpus[own])
        hosts.append(subprocess.Popen(command, env=environment, preexec_fn=_entering(namespace)))
    return hosts


def wait(hosts: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for the hosts; when one fails, end the others. The first error's exit code, or 0."""
    failed_at, code = float("inf"), 0
    while any(host.poll() is None for host in hosts):
        for host in hosts:
            if host.returncode and not code:
                failed_at, code = time.monotonic(), host.returncode
        if time.monotonic() - failed_at > GRACE:
            _end(hosts)
        time.sleep(0.05)
    return code or next((host.returncode for host in hosts if host.returncode), 0)


def _end(hosts: Sequence[subprocess.Popen[bytes]]) -> None:
    # Not SIGTERM: torchrun would wait for blocked processes. Its processes end with it.
    for host in hosts:
        if host.poll() is None:
            host.kill()


def _entering(namespace: Namespace | None) -> Callable[[], None]:
    """Returns the function that a host's process calls between fork and exec."""

    def enter() -> None:
        end_with_parent()
        if namespace is not None:
            namespace.enter()

    return enter


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def main() -> None:
    try:
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
