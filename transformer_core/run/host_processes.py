"""One host's processes of a run over several hosts.

``python -m transformer_core.run.host_processes`` is started on every host by srun, by
:mod:`transformer_core.run.linked_hosts` or by hand, and becomes the torchrun of
this host. Which host it is, Slurm says, or the environment: NODE_RANK (0, 1, ...) and RENDEZVOUS
(host:port of the first).
"""

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import psutil

from schemas.config.parallel import HOST_VARIABLE

ONE_HOST = "transformer_core.run.host_processes"
AGENT = "transformer_core.run.rendezvous"
QUICK_START = "transformer_core.run.quick_start"
"""Runs a module as a program, and ends without Python's shutdown, which threads of gloo that are
still running would abort."""


@dataclass(frozen=True)
class Host:
    """This host's place in a run."""

    node_rank: int  # 0 for the first, which holds rank 0
    address: str  # address of the first
    port: int  # port on the first where the processes find one another


def this_host() -> Host | None:
    """This host's place from its environment; null if it is not set.

    Raises ValueError for an environment that says half of it.
    """
    node, rendezvous = os.environ.get("NODE_RANK"), os.environ.get("RENDEZVOUS")
    if node is None and rendezvous is None:
        return _of_slurm_step()
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
    address of the first; see :mod:`transformer_core.run.rendezvous`."""
    command = [sys.executable, "-m", AGENT, f"--nproc-per-node={processes}"]
    return [*command, "--rdzv-backend=one_address", f"--rdzv-endpoint={address}:{port}"]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, as :data:`ONE_HOST` is told in JSON on each of them, before the module
    that its processes run and its options."""

    nodes: int
    processes: int  # on each host
    timeout: float  # seconds to wait for the other hosts
    place: int = 0  # added to the port; one for each run at the same time

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", ONE_HOST, json.dumps(asdict(self))]


def in_slurm_job() -> bool:
    """Whether this process belongs to a Slurm job, in which it can start others."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


def _of_slurm_step() -> Host | None:
    """This host's place in the step over several hosts that this process belongs to; null outside
    one."""
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_NODES", 1)) == 1:
        return None
    hosts = _output(["scontrol", "show", "hostnames", environment["SLURM_STEP_NODELIST"]])
    # A port that is the same on all hosts of the step, and another one in another step.
    name = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    port = 20_000 + zlib.crc32(name.encode()) % 12_000
    return Host(int(environment["SLURM_NODEID"]), slurm_address(hosts.split()[0]), port)


def srun(nodes: int) -> list[str]:
    """The start of a command that runs once on each of ``nodes`` hosts of this job."""
    command = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # Several runs of one job may be at work at a time: they share its hosts.
    command += ["--overlap", "--input=none", "--unbuffered", "--kill-on-bad-exit=1"]
    cpus = _cpus_per_task()
    # srun takes one CPU per task unless it is told, whatever the job has.
    return [*command, f"--cpus-per-task={cpus}"] if cpus else command


def slurm_host_name() -> str:
    """The name of this host: Slurm's, where Slurm started this process."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def slurm_address(name: str) -> str:
    """The address at which Slurm reaches the host ``name``."""
    found = re.search(r"\bNodeAddr=(\S+)", _output(["scontrol", "-o", "show", "node", name]))
    return found[1] if found else name


def _cpus_per_task() -> str | None:
    given = os.environ.get("SLURM_CPUS_PER_TASK")
    if given:
        return given
    job = _output(["scontrol", "-o", "show", "job", os.environ["SLURM_JOB_ID"]])
    found = re.search(r"\bCPUs/Task=(\d+)", job)
    return found[1] if found else None


def _output(command: list[str]) -> str:
    """The output of a Slurm command; CalledProcessError if it fails."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Where gloo, NCCL and TensorPipe look for the name of the interface that they listen on."""

LOOPBACK = "127.0.0.1"


def within_host(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes of one host, which only talk to one another: those of loopback.
    What was ``given``, the user's own choice, comes first."""
    return {name: given.get(name, interface_of(LOOPBACK)) for name in INTERFACE_VARIABLES}


def between_hosts(
    first: str, port: int, is_first: bool, given: Mapping[str, str]
) -> dict[str, str]:
    """The environment of processes of one of several hosts: of the interface with which this host
    reaches the ``first``. Empty where the system does not tell it."""
    address = socket.gethostbyname(first) if is_first else _own_address(first, port)
    name = interface_of(address) if address else ""
    return {variable: given.get(variable, name) for variable in INTERFACE_VARIABLES} if name else {}


def interface_of(address: str) -> str:
    """The name of the interface with an IPv4 address; empty where none has it."""
    if ipaddress.ip_address(address).is_loopback:
        address = LOOPBACK  # all of 127/8 is this one
    for name, found in psutil.net_if_addrs().items():
        if any(one.family == socket.AF_INET and one.address == address for one in found):
            return name
    return ""


def _own_address(host: str, port: int) -> str:
    """The address with which this host reaches another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return ""
        return probe.getsockname()[0]


def main() -> None:
    hosts, worker = Hosts(**json.loads(sys.argv[1])), sys.argv[2:]
    host = this_host()
    if host is None:
        sys.exit("which host is this? Set NODE_RANK and RENDEZVOUS, or start it through srun")
    port = host.port + hosts.place
    command = torchrun(hosts.processes, host.address, port)
    command += [f"--nnodes={hosts.nodes}"]
    # A static rendezvous: ranks are in the order of the hosts.
    timeout = max(1, round(hosts.timeout))
    command += [f"--rdzv-conf=rank={host.node_rank},timeout={timeout}"]
    first = host.node_rank == 0
    os.environ.update(between_hosts(host.address, port, first, os.environ))
    command += ["-m", QUICK_START, *worker]
    os.environ.setdefault(HOST_VARIABLE, slurm_host_name())
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
