"""What Slurm says of a job, and how a run is started on all of its hosts."""

import os
import re
import shutil
import socket
import subprocess
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """The part of a job step over several hosts that runs on this one."""

    node_rank: int
    """Number of this host in the step."""
    nodes: str
    """All hosts, as Slurm abbreviates them."""
    name: str
    """Job and step."""

    def first_address(self) -> str:
        """Address at which Slurm itself reaches the first host."""
        return slurm_address(_output(["scontrol", "show", "hostnames", self.nodes]).split()[0])

    def port(self) -> int:
        """A port that is the same on all hosts of the step, and another one in another step."""
        return 20_000 + zlib.crc32(self.name.encode()) % 12_000


def in_slurm_job() -> bool:
    """Whether this process belongs to a Slurm job, in which it can start others."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


def slurm_step() -> Step | None:
    """The step over several hosts that this process belongs to; null outside one."""
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_NODES", 1)) == 1:
        return None
    return Step(
        node_rank=int(environment["SLURM_NODEID"]),
        nodes=environment["SLURM_STEP_NODELIST"],
        name=f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}",
    )


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
    """What a command of Slurm prints; CalledProcessError if it fails."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
