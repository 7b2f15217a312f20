"""One host's processes of a run over several hosts.

``python -m transformer_core.run.hosts.one_host`` is started on every host by srun, by
:mod:`transformer_core.run.hosts.linked_hosts` or by hand, and becomes the torchrun of
this host. Which host it is, Slurm says, or the environment: NODE_RANK (0, 1, ...) and RENDEZVOUS
(host:port of the first).
"""

import argparse
import os
import socket
import sys
from dataclasses import dataclass

from schemas.config.link import HOST_VARIABLE
from transformer_core.run.hosts.interfaces import between_hosts
from transformer_core.run.hosts.slurm import in_slurm_job, slurm_address, slurm_host_name, slurm_step

ONE_HOST = "transformer_core.run.hosts.one_host"
AGENT = "transformer_core.run.hosts.agent"
QUICK_START = "transformer_core.run.quick_start"
"""Runs a module as a program; its end, without taking anything apart, is safe too: threads of gloo
that are still there when a process takes itself apart abort it."""


@dataclass(frozen=True)
class Host:
    """This host's place in a run."""

    node_rank: int
    """0 for the first, which holds rank 0."""
    address: str
    """Address of the first."""
    port: int
    """Port on the first where the processes find one another."""


def this_host() -> Host | None:
    """This host's place, as its environment says; null where it says nothing.

    Raises ValueError for an environment that says half of it.
    """
    node, rendezvous = os.environ.get("NODE_RANK"), os.environ.get("RENDEZVOUS")
    if node is None and rendezvous is None:
        step = slurm_step()
        return None if step is None else Host(step.node_rank, step.first_address(), step.port())
    address, _, port = (rendezvous or "").rpartition(":")
    if node is None or not node.isdigit() or not address or not port.isdigit():
        raise ValueError(
            f"NODE_RANK = {node!r}, RENDEZVOUS = {rendezvous!r}: set both, to the number of this "
            "host (0 for the first) and to host:port of the first"
        )
    return Host(int(node), address, int(port))


def own_address() -> str:
    """Where other hosts of a run reach this one, its first: as they are told in RENDEZVOUS, else
    as Slurm reaches it, else by its name."""
    address, _, _ = os.environ.get("RENDEZVOUS", "").rpartition(":")
    if address:
        return address
    return slurm_address(slurm_host_name()) if in_slurm_job() else socket.gethostname()


def torchrun(processes: int, address: str = "127.0.0.1", port: int = 0) -> list[str]:
    """The start of a command line of torchrun for ``processes`` on this host, which meet at an
    address of the first; see :mod:`transformer_core.run.hosts.agent`."""
    command = [sys.executable, "-m", AGENT, f"--nproc-per-node={processes}"]
    return [*command, "--rdzv-backend=one_address", f"--rdzv-endpoint={address}:{port}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.run.hosts.one_host",
        description="Start one host's processes of a run over several hosts.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--place", type=int, default=0, help="added to the port; one for each run at the same time"
    )
    arguments = parser.parse_args()
    host = this_host()
    if host is None:
        parser.error("which host is this? Set NODE_RANK and RENDEZVOUS, or start it through srun")
    port = host.port + arguments.place
    command = torchrun(arguments.processes, host.address, port)
    command += [f"--nnodes={arguments.nodes}"]
    # A static rendezvous: ranks are in the order of the hosts.
    timeout = max(1, round(arguments.timeout))
    command += [f"--rdzv-conf=rank={host.node_rank},timeout={timeout}"]
    first = host.node_rank == 0
    os.environ.update(between_hosts(host.address, port, first, os.environ))
    command += ["-m", QUICK_START, *arguments.worker]
    os.environ.setdefault(HOST_VARIABLE, slurm_host_name())
    os.execv(command[0], command)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say what to start."""
    parser.add_argument("--nodes", type=int, required=True, help="hosts of the run")
    parser.add_argument("--processes", type=int, required=True, help="processes on each host")
    parser.add_argument(
        "--timeout", type=float, required=True, help="seconds to wait for the other hosts"
    )
    parser.add_argument(
        "worker", nargs=argparse.REMAINDER, help="module that the processes run, and its options"
    )


if __name__ == "__main__":
    main()
