"""Two hosts with a limited link between them, made on this machine.

``python -m transformer_core.run.linked_hosts`` starts
:mod:`transformer_core.run.host_processes` twice, each in a network namespace of its
own, or, where the link is only emulated, side by side.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import get_args

from schemas.config.link import HOST_VARIABLE, LINK_VARIABLE, LinkKind
from transformer_core.run.host_processes import INTERFACE_VARIABLES, ONE_HOST, add_arguments
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


def start(arguments: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Start both hosts."""
    joined: tuple[Namespace | None, ...] = (None, None)
    rendezvous = f"127.0.0.1:{_free_port()}"
    if arguments.link == "namespaces":
        joined = join_two(arguments.bandwidth)
        rendezvous = f"{ADDRESSES[0]}:{PORT}"
    command = [sys.executable, "-m", ONE_HOST, f"--nodes={len(joined)}"]
    command += [f"--processes={arguments.processes}", f"--timeout={arguments.timeout}"]
    command += arguments.worker
    hosts = []
    for node, namespace in enumerate(joined):
        environment = os.environ | {"NODE_RANK": str(node), "RENDEZVOUS": rendezvous}
        environment |= {LINK_VARIABLE: arguments.link}
        environment |= {HOST_VARIABLE: f"{node} on {socket.gethostname()}"}
        if namespace is not None:
            environment |= dict.fromkeys(INTERFACE_VARIABLES, DEVICE)
            # NCCL would find its peers by shared memory, past the link.
            environment |= {"NCCL_HOSTID": f"host-{node}", "NCCL_IB_DISABLE": "1"}
        if arguments.gpus:
            own = slice(node * arguments.processes, (node + 1) * arguments.processes)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(arguments.gpus.split(",")[own])
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
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.linked_hosts",
        description="Start a run on two hosts emulated on this machine, with a limited link.",
    )
    parser.add_argument(
        "--link", choices=get_args(LinkKind), required=True, help="how the link is made"
    )
    parser.add_argument("--bandwidth", type=float, required=True, help="bits per second")
    parser.add_argument("--gpus", help="UUIDs of the GPUs that the hosts share out")
    add_arguments(parser)
    arguments = parser.parse_args()
    try:
        hosts = start(arguments)
    except NamespacesUnavailableError as error:
        parser.exit(1, f"{error}\n")

    def hand_on(number: int, _: object) -> None:
        for host in hosts:
            host.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    sys.exit(wait(hosts))


if __name__ == "__main__":
    main()
