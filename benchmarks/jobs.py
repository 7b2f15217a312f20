"""Time, memory and disk space of a command and its jobs: ``python benchmarks/jobs.py``.

For example, the whole preparation of a study of five million pairs, in one call of Snakemake::

    python benchmarks/jobs.py --disk results/data/grammar_5m --output preparation.json -- \\
        snakemake --cores all results/data/grammar_5m/verify.json \\
        --configfile config/studies/original.yaml

A job is a process ``python -m transformer_core...`` with all processes that it starts. Linux only.
"""

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

from transformer_core.common.files import write_text
from transformer_core.machine.hardware import cpu_name

_PACKAGES = ("numba", "numpy", "pyarrow", "snakemake", "tokenizers")
_MB = 1_000_000
_QUICK_START = "transformer_core.run.quick_start"  # starts another module


@dataclass
class Job:
    module: str  # the module that Python ran
    output: str  # the first file that it was asked to write
    first: float  # when it was first seen, in seconds from the beginning
    last: float  # when it was last seen, in seconds from the beginning
    processes: int = 0  # most processes at a time
    process_mb: float = 0.0  # largest resident memory of one process, mapped files included
    all_mb: float = 0.0  # largest of all processes together; shared pages count for each of them

    @property
    def seconds(self) -> float:
        return self.last - self.first


@dataclass
class Record:
    command: list[str]  # as it was started
    code: int = 0  # its exit status
    seconds: float = 0.0  # from start to end
    all_mb: float = 0.0  # most memory of all processes together, Snakemake's own included, in MB
    disk_mb: float = 0.0  # largest size of the folders on disk, in MB
    disk_end_mb: float = 0.0  # disk space used at the end, in MB
    jobs: list[Job] = field(default_factory=list)  # in the order in which they began
    machine: dict[str, str | int] = field(default_factory=dict)  # the machine it ran on
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that do the work


def watch(command: list[str], folders: list[Path], interval: float) -> Record:
    """Runs a command and observes it every ``interval`` seconds."""
    record = Record(command, machine=_machine(), versions={p: version(p) for p in _PACKAGES})
    began = time.perf_counter()
    running = psutil.Popen(command)
    jobs: dict[int, Job] = {}
    turn = 0
    while running.poll() is None:
        now = time.perf_counter() - began
        record.all_mb = max(record.all_mb, _look(running, jobs, now) / _MB)
        # Walking folders takes longer than observing processes.
        if turn % 20 == 0:
            record.disk_mb = max(record.disk_mb, _disk(folders))
        turn += 1
        time.sleep(interval)
    record.code = running.returncode
    record.seconds = time.perf_counter() - began
    record.disk_end_mb = _disk(folders)
    record.disk_mb = max(record.disk_mb, record.disk_end_mb)
    record.jobs = list(jobs.values())
    return record


def _look(command: psutil.Process, jobs: dict[int, Job], now: float) -> float:
    """The resident bytes of all processes now; updates the ``jobs`` that they belong to."""
    processes = [command]
    try:
        processes += command.children(recursive=True)
    except psutil.Error:
        return 0.0
    parents, resident, highest = {}, {}, {}
    for process in processes:
        try:
            with process.oneshot():
                parents[process.pid] = process.ppid()
                resident[process.pid] = process.memory_info().rss
                # The kernel's own peak, so that no peak between two looks is missed.
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = re.search(r"^VmHWM:\s*(\d+)", status, re.M)
                highest[process.pid] = int(found[1]) * 1024 if found else 0
                if process.pid not in jobs and (job := _job(process.cmdline(), now)):
                    jobs[process.pid] = job
        except (psutil.Error, OSError, ValueError, LookupError):  # it ended, or has a bad order
            continue
    members: dict[int, list[int]] = {}
    for pid in resident:
        if (owner := _owner(pid, parents, jobs)) is not None:
            members.setdefault(owner, []).append(pid)
    for owner, pids in members.items():
        job = jobs[owner]
        job.last = now
        job.processes = max(job.processes, len(pids))
        job.process_mb = max(job.process_mb, *(highest.get(pid, 0) / _MB for pid in pids))
        job.all_mb = max(job.all_mb, job.process_mb, sum(resident[pid] for pid in pids) / _MB)
    return sum(resident.values())


def _job(command: list[str], now: float) -> Job | None:
    if command[1:3] == ["-m", _QUICK_START]:
        command = [*command[:2], *command[3:]]
    if len(command) < 3 or command[1] != "-m" or not command[2].startswith("transformer_core."):
        return None
    if command[2].endswith(".run.job") and "--order" in command:
        given = command[command.index("--order") + 1]
        order = json.loads(given if given.startswith("{") else Path(given).read_text())
        outputs = order.get("outputs") or [order.get("output") or order.get("pairs", "")]
        return Job(f"transformer_core.{order['kind']}", outputs[0], now, now)
    outputs = [command[place + 1] for place, word in enumerate(command[:-1]) if word == "--output"]
    return Job(command[2], outputs[0] if outputs else "", now, now)


def _owner(pid: int, parents: Mapping[int, int], jobs: Mapping[int, Job]) -> int | None:
    """The job that a process belongs to."""
    while pid not in jobs:
        if pid not in parents:
            return None
        pid = parents[pid]
    return pid


def _disk(folders: list[Path]) -> float:
    """Size of the folders on disk in MB."""
    size = 0
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                size += path.lstat().st_blocks * 512
            except OSError:  # a temporary file, removed since
                continue
    return size / _MB


def _machine() -> dict[str, str | int]:
    return {
        "processor": cpu_name(),
        "cores": psutil.cpu_count() or 0,
        "memory_mb": round(psutil.virtual_memory().total / _MB),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def show(record: Record) -> str:
    lines = [
        "| job | seconds | processes | MB of the largest | MB of all |",
        "|---|---:|---:|---:|---:|",
    ]
    for job in record.jobs:
        name = f"{job.module.removeprefix('transformer_core.')} {job.output}".strip()
        sizes = f"{job.process_mb:,.0f} | {job.all_mb:,.0f}"
        lines.append(f"| {name} | {job.seconds:.1f} | {job.processes} | {sizes} |")
    largest = max((job.process_mb for job in record.jobs), default=0.0)
    lines.append(f"| everything | {record.seconds:.1f} | | {largest:,.0f} | {record.all_mb:,.0f} |")
    disk = f"Disk: {record.disk_end_mb:,.0f} MB in the end, {record.disk_mb:,.0f} MB at most."
    return "\n".join([*lines, "", disk])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/jobs.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, help="JSON file of the record")
    parser.add_argument(
        "--disk",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="record the size of this folder, too; may be given again",
    )
    parser.add_argument(
        "--interval", type=float, default=0.1, help="seconds between observations (default: 0.1)"
    )
    parser.add_argument("command", nargs="+", help="after --: the command to run")
    options = parser.parse_args()
    record = watch(options.command, options.disk, options.interval)
    print(show(record))
    if options.output is not None:
        write_text(options.output, json.dumps(asdict(record), indent=2) + "\n")
    return record.code


if __name__ == "__main__":
    sys.exit(main())
