"""One host's processes of a run over several hosts.

srun, :mod:`transformer_core.run.linked_hosts` or the user starts this module on every host, by
:mod:`transformer_core.run.quick_start`. On a host with GPUs it becomes torchrun; elsewhere it forks
the host's processes, with the same agent. The number of the host comes from Slurm or from the
environment: NODE_RANK (0, 1, ...) and RENDEZVOUS (host:port of the first host).
"""

import ipaddress
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import psutil

from schemas.config.parallel import HOST_VARIABLE
from schemas.errors import Refusal
from transformer_core.common.endings import program
from transformer_core.parallel.nvml import visible_gpus
from transformer_core.run.gpu_leases import forget_those_of_another_host
from transformer_core.run.quick_start import Meeting, carry_out
from transformer_core.run.warm_start import Program

ONE_HOST = "transformer_core.run.host_processes"
AGENT = "transformer_core.run.rendezvous"
QUICK_START = "transformer_core.run.quick_start"
"""Runs a module as a program, and ends without Python's shutdown, which gloo's running threads would
abort."""


@dataclass(frozen=True)
class Host:
    """This host's place in a run."""

    node_rank: int  # 0 for the first, which holds rank 0
    address: str  # address of the first
    port: int  # rendezvous port on the first


def this_host() -> Host | None:
    """This host's place according to its environment; None if that is not set.

    Raises Refusal if only one of the two variables is set, or one is invalid.
    """
    node, rendezvous = os.environ.get("NODE_RANK"), os.environ.get("RENDEZVOUS")
    if node is None and rendezvous is None:
        return _of_slurm_step()
    address, _, port = (rendezvous or "").rpartition(":")
    if node is None or not node.isdigit() or not address or not port.isdigit():
        raise Refusal(
            f"NODE_RANK = {node!r}, RENDEZVOUS = {rendezvous!r}: set both, to the number of this "
            "host (0 for the first) and to host:port of the first, or neither if runs have one host"
        )
    return Host(int(node), address, int(port))


def own_address() -> str:
    """The address of this host, the first of a run, for the others: that of RENDEZVOUS, else
    Slurm's, else the host's name."""
    address, _, _ = os.environ.get("RENDEZVOUS", "").rpartition(":")
    if address:
        return address
    return slurm_address(slurm_host_name()) if in_slurm_job() else socket.gethostname()


def torchrun(processes: int, address: str = "127.0.0.1", port: int = 0) -> list[str]:
    """The start of a command line of torchrun for ``processes`` on this host, which meet at this
    address of the first host; see :mod:`transformer_core.run.rendezvous`."""
    command = [sys.executable, "-m", AGENT, f"--nproc-per-node={processes}"]
    return [*command, "--rdzv-backend=one_address", f"--rdzv-endpoint={address}:{port}"]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run: the first argument of :data:`ONE_HOST` on each of them, as JSON, before
    the worker's module and its options."""

    nodes: int
    processes: int  # on each host
    timeout: float  # seconds to wait for the other hosts
    place: int = 0  # added to the port; unique among simultaneous runs

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", QUICK_START, ONE_HOST, json.dumps(asdict(self))]


def in_slurm_job() -> bool:
    """Whether this process belongs to a Slurm job and can start others in it."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


def _of_slurm_step() -> Host | None:
    """This host's place in this process's Slurm step; None unless the step spans several hosts."""
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_NODES", 1)) == 1:
        return None
    hosts = _output(["scontrol", "show", "hostnames", environment["SLURM_STEP_NODELIST"]])
    # The same port on all hosts of the step, but a different one in another step.
    name = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    port = 20_000 + zlib.crc32(name.encode()) % 12_000
    return Host(int(environment["SLURM_NODEID"]), slurm_address(hosts.split()[0]), port)


def srun(nodes: int) -> list[str]:
    """The start of a command that runs once on each of ``nodes`` hosts of this job."""
    command = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # Several runs of a job may run at the same time and share its hosts.
    command += ["--overlap", "--input=none", "--unbuffered", "--kill-on-bad-exit=1"]
    cpus = _cpus_per_task()
    # By default srun takes one CPU per task, however many the job has.
    return [*command, f"--cpus-per-task={cpus}"] if cpus else command


def slurm_host_name() -> str:
    """The name of this host, as Slurm knows it if Slurm started this process."""
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
    """The output of a Slurm command; Refusal if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Refusal(
            f"Slurm does not answer {shlex.join(command)}: {said(error)}\n"
            "    remedy: wait until this command works here, then give the same command again"
        ) from None
    return done.stdout.strip()


def said(error: Exception) -> str:
    """The error output of a failed command on one line; if it printed none, how the command ended."""
    text = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return " ".join((text or str(error)).split())


INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that tell gloo, NCCL and TensorPipe which interface to listen on."""


def listening_on(interface: str) -> dict[str, str]:
    """These variables for one interface; empty texts for an unknown one. To NCCL a name alone is the
    beginning of several: eth0 is also eth0.100 (NVIDIA, NCCL_SOCKET_IFNAME)."""
    exactly = f"={interface}" if interface else ""
    return dict.fromkeys(INTERFACE_VARIABLES, interface) | {"NCCL_SOCKET_IFNAME": exactly}


LOOPBACK = "127.0.0.1"


def within_host(given: Mapping[str, str]) -> dict[str, str]:
    """Variables for processes of one host, which only talk to one another: the loopback interface,
    unless the user has ``given`` another."""
    found = listening_on(interface_of(LOOPBACK))
    return {name: given.get(name, value) for name, value in found.items()}


def between_hosts(
    first: str, port: int, is_first: bool, given: Mapping[str, str]
) -> dict[str, str]:
    """Variables for processes of one of several hosts: the interface through which this host reaches
    the ``first``, unless the user has ``given`` another. Empty if the system does not report it."""
    address = socket.gethostbyname(first) if is_first else _own_address(first, port)
    name = interface_of(address) if address else ""
    found = listening_on(name) if name else {}
    return {variable: given.get(variable, value) for variable, value in found.items()}


def interface_of(address: str) -> str:
    """The name of the interface with this IPv4 address; empty if none has it."""
    if ipaddress.ip_address(address).is_loopback:
        address = LOOPBACK  # stands for all of 127/8
    for name, found in psutil.net_if_addrs().items():
        if any(one.family == socket.AF_INET and one.address == address for one in found):
            return name
    return ""


def _own_address(host: str, port: int) -> str:
    """The address from which this host reaches another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return ""
        return probe.getsockname()[0]


def own_or_given(name: str, given: Mapping[str, str]) -> str:
    """``name``, that of the first host, unless this is the first host and its own name stands for the
    loopback interface, as on Debian (127.0.1.1), where no other host reaches it: then the address of
    the interface that the user has ``given``, or of the one that leads to other networks, if any."""
    try:
        ipaddress.ip_address(name)
        return name
    except ValueError:
        pass
    try:
        loops = ipaddress.ip_address(socket.gethostbyname(name)).is_loopback
    except OSError:
        raise Refusal(f"RENDEZVOUS: {name} is unknown here: give an address") from None
    if not loops or name == "localhost":
        return name
    interfaces = psutil.net_if_addrs()
    names = (given.get(variable, "").lstrip("=") for variable in INTERFACE_VARIABLES)
    chosen = (interfaces.get(name, []) for name in names)
    own = next(
        (one.address for found in chosen for one in found if one.family == socket.AF_INET), None
    )
    # Reserved for documentation, so the way there is the default one.
    found = own or _own_address("192.0.2.1", 9)
    if not found or ipaddress.ip_address(found).is_loopback:
        return name
    print(f"{name} is a loopback address on this host: uses {found}", file=sys.stderr)
    return found


@program
def main() -> int:
    hosts, worker = Hosts(**json.loads(sys.argv[1])), sys.argv[2:]
    host = this_host()
    if host is None:
        sys.exit("the number of this host is unknown: set NODE_RANK and RENDEZVOUS, or use srun")
    port = host.port + hosts.place
    address = own_or_given(host.address, os.environ)
    # A static rendezvous: ranks are in the order of the hosts.
    timeout = max(1, round(hosts.timeout))
    first = host.node_rank == 0
    os.environ.update(between_hosts(address, port, first, os.environ))
    os.environ.setdefault(HOST_VARIABLE, slurm_host_name())
    forget_those_of_another_host()
    if not visible_gpus():
        meeting = Meeting(hosts.nodes, host.node_rank, f"{address}:{port}", timeout)
        return carry_out(Program(worker[0], worker[1:], hosts.processes), meeting)
    command = torchrun(hosts.processes, address, port)
    command += [f"--nnodes={hosts.nodes}", f"--rdzv-conf=rank={host.node_rank},timeout={timeout}"]
    os.execv(command[0], [*command, "-m", QUICK_START, *worker])
