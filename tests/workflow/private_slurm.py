"""A Slurm of two hosts with one simulated GPU each, all on this machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")
CONFIGURATION = Path("/etc/slurm")
"""The executor looks for it here, because it removes SLURM_CONF from the environment of jobs."""

FILES = ("slurm.conf", "gres.conf")
HOSTS = ("n1", "n2")


def impossible() -> str | None:
    """Why this machine cannot run a private Slurm; None if it can."""
    missing = [command for command in COMMANDS if shutil.which(command, path=_path()) is None]
    if missing:
        return f"{missing[0]} is not installed (packages slurm-wlm, munge)"
    if os.getuid() != 0:
        return "a private Slurm is started by the superuser"
    for name in FILES:
        file = CONFIGURATION / name
        if file.exists():
            return f"{file} exists: this machine has a Slurm already"
    return None


class PrivateSlurm:
    """Runs the daemons of Slurm within a ``with`` block; all their files are below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"

    def __enter__(self) -> "PrivateSlurm":
        for name in ("controller", *HOSTS):
            (self.run / name).mkdir(parents=True)
        # munged refuses a socket that others cannot reach, and a key that others can read.
        for path in (self.folder, self.run):
            path.chmod(0o755)
        key = self.run / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.folder / "slurm.conf").write_text(self._slurm_conf())
        (self.folder / "gres.conf").write_text(
            "AutoDetect=off\nNodeName=n[1-2] Name=gpu File=/dev/null\n"
        )
        CONFIGURATION.mkdir(exist_ok=True)
        try:
            for name in FILES:
                link = CONFIGURATION / name
                link.unlink(missing_ok=True)  # the dead link of a killed test
                link.symlink_to(self.folder / name)
            _output(
                "munged",
                "--force",
                f"--key-file={key}",
                f"--socket={self.run / 'munge.socket'}",
                f"--pid-file={self.run / 'munged.pid'}",
                f"--log-file={self.run / 'munged.log'}",
                f"--seed-file={self.run / 'munged.seed'}",
            )
            _output("slurmctld")
            for host in HOSTS:
                _output("slurmd", "-N", host)
            self._wait_for_hosts()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if (self.run / "slurmctld.pid").exists():
            for job in self.jobs("all"):
                self.cancel(job)
        for file in self.run.glob("*.pid"):
            with contextlib.suppress(ValueError, psutil.Error, FileNotFoundError):
                daemon = psutil.Process(int(file.read_text()))
                # Jobs that still run are children of their host's daemon.
                for process in [*daemon.children(recursive=True), daemon]:
                    process.terminate()
                daemon.wait(20)
        for name in FILES:
            link = CONFIGURATION / name
            if link.is_symlink() and link.readlink() == self.folder / name:
                link.unlink()

    def jobs(self, state: str = "running") -> dict[str, str]:
        """The numbers of the jobs in ``state``, each with Snakemake's name of the job."""
        lines = _output("squeue", "--noheader", f"--states={state}", "--format=%A %k").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def describe(self, job: str) -> str:
        """Everything that Slurm knows about a job."""
        return _output("scontrol", "--oneliner", "show", "job", job)

    def cancel(self, job: str) -> None:
        """Cancels a job, as its owner would."""
        _output("scancel", job)

    def requeue(self, job: str) -> None:
        """Puts a running job back into the queue, as preemption does."""
        _output("scontrol", "requeue", job)

    def _wait_for_hosts(self, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            states = _output("sinfo", "--noheader", "--Node", "--format=%t").split()
            if states == ["idle"] * len(HOSTS):
                return
            time.sleep(0.2)
        logs = "\n".join(file.read_text()[-2000:] for file in self.run.glob("*.log"))
        raise AssertionError(f"the hosts of Slurm do not come up: {states}\n{logs}")

    def _slurm_conf(self) -> str:
        host, run = socket.gethostname().split(".")[0], self.run
        memory = psutil.virtual_memory().total // 2**20 * 9 // 10
        controller, *ports = _free_ports(1 + len(HOSTS))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={os.cpu_count()} RealMemory={memory} Gres=gpu:1 State=UNKNOWN"
            for name, port in zip(HOSTS, ports, strict=True)
        )
        return f"""ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket,cred_expire=15
CommunicationParameters=NoInAddrAny
SlurmctldPort={controller}
StateSaveLocation={run}/controller
SlurmctldPidFile={run}/slurmctld.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdSpoolDir={run}/%n
SlurmdPidFile={run}/slurmd-%n.pid
SlurmdLogFile={run}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=600
KillWait=10
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | {"PATH": _path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
