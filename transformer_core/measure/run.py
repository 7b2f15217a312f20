"""One repeat of a run spec: start its processes, watch them, and record how they ended.

A run that this machine cannot do, that runs out of memory, diverges or fails with an exception
still has a result: its status. A run that is killed has none; the same command goes on from its
last checkpoint.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors.numpy

from schemas.errors import Unsupported
from schemas.results import Repeat
from schemas.study import RunSpec
from transformer_core.data.files import atomic_path, write_text
from transformer_core.measure import out_of_memory
from transformer_core.measure.fit import warn_before
from transformer_core.measure.launch import launcher, lends_processes_only, threads_per_process
from transformer_core.measure.outcome import (
    CHECKPOINTS,
    clear_outcomes,
    end_with_parent,
    read_outcomes,
    write_outcome,
)
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.train.history import History

WORKER = "transformer_core.measure.worker"

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""For glibc: freed memory stays with the process. By default large blocks go back to the kernel and
come again at every step, by limits that each process moves as it goes: two processes of one run
spec then differ by several percent in speed. The user's own settings come first."""


def reproducing_command(target: Path) -> str:
    """The command that makes ``target`` again; the workflow says in STUDY_OPTIONS which study."""
    return f"snakemake --cores all {target} {os.environ.get('STUDY_OPTIONS', '')}".strip()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; wait while another one works on it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            log.info("%s is in use by process %s: waiting for it", folder, lock.read().strip())
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def supervise(arguments: argparse.Namespace, spec: RunSpec) -> None:
    """Run the workers and make sure that metrics.json says how they ended."""
    started = datetime.now(UTC)
    output: Path = arguments.output
    clear_outcomes(output)
    for name in ("metrics.json", "steps.parquet", "model.safetensors"):
        (output / name).unlink(missing_ok=True)
    outcome = attempt(spec, WORKER, worker_options(arguments), output / "metrics.json")
    if outcome is not None:
        _write_unfinished(arguments, spec, outcome, started)
        clear_outcomes(output)
    shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)


def attempt(
    spec: RunSpec, worker: str, options: Sequence[str], result: Path
) -> dict[str, Any] | None:
    """Run the workers; None if they wrote ``result``, else how they ended.

    Ends this process if the workers were stopped before they could tell.
    """
    code, kills = 0, out_of_memory.kernel_kills()
    try:
        code = run_workers(spec, worker, options)
    except Unsupported as error:
        write_outcome(result.parent, 0, error)
    if code == 0 and result.exists():
        return None
    # What a worker says of its end when all were stopped is no result.
    outcome = read_outcomes(result.parent) if code >= 0 else None
    if out_of_memory.kernel_kills() > kills and (outcome is None or outcome["status"] == "failed"):
        # A process that the kernel ends can say nothing, and its peers only that it is gone.
        return {"status": "oom", "reason": out_of_memory.reason_of_kill(), "traceback": None}
    if outcome is None:
        print(
            f"{result.parent}: stopped before it was done ({how_ended(code)}). The same command "
            "goes on, from the last checkpoint where there is one.",
            file=sys.stderr,
        )
        sys.exit(1)
    return outcome


def worker_options(arguments: argparse.Namespace) -> list[str]:
    """The command line of the workers: that of this job, with defaults written out."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    return [
        word
        for name, value in given.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def run_workers(spec: RunSpec, worker: str, options: Sequence[str]) -> int:
    """Run the workers of this host to their end, handing on requests to stop; the exit code."""
    child = start_workers(spec, worker, options)
    asked: list[int] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    code = child.wait()
    return -asked[0] if code and asked else code


def start_workers(
    spec: RunSpec, worker: str, options: Sequence[str], place: int = 0
) -> subprocess.Popen[bytes]:
    """Start the workers of this host; for ``place`` see :func:`launcher`."""
    threads = str(threads_per_process(spec))
    return subprocess.Popen(
        [*launcher(spec, worker, place), *options],
        # torch takes MKL's number, which Snakemake sets, before OpenMP's.
        env=ALLOCATOR | os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        preexec_fn=end_with_parent,  # torchrun would train on without anybody who records it
    )


def how_ended(code: int) -> str:
    """An exit code in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _write_unfinished(
    arguments: argparse.Namespace, spec: RunSpec, outcome: dict[str, str], started: datetime
) -> None:
    """The three result files of a run that is not ok: a status, no steps, no weights."""
    output: Path = arguments.output
    log.info("%s: %s, %s", spec.variant, outcome["status"], outcome["reason"])
    with atomic_path(output / "model.safetensors") as temporary:
        safetensors.numpy.save_file({}, temporary, {"status": outcome["status"]})
    History().write(output / "steps.parquet")
    repeat = Repeat.model_validate(
        {
            "variant": spec.variant,
            "repeat": arguments.repeat,
            "status": outcome["status"],
            "reason": outcome["reason"],
            "traceback": outcome["traceback"],
            "topology": None,
            "parameters": None,
            "steps": 0,
            "resumed_at": [],
            "startup_seconds": None,
            "warmup_seconds": None,
            "total_seconds": time.time() - started.timestamp(),
            "windows": [],
            "validations": [],
            "memory": [],
            "communication": None,
            "provenance": collect(spec, arguments.command, started),
        }
    )
    write_text(output / "metrics.json", repeat.model_dump_json(indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the variant")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--repeat", type=int, default=1, help="number of the repeat, from 1")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    parser.add_argument("--predicted", type=Path, help="results/memory/predicted.json")
    arguments = parser.parse_args()
    predicted = arguments.predicted
    del arguments.predicted  # the rest is for the workers
    arguments.command = reproducing_command(arguments.output / "metrics.json")
    log_to(arguments.log_file)
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    if lends_processes_only():
        sys.exit(run_workers(spec, WORKER, worker_options(arguments)))
    if predicted is not None:
        warn_before(spec, predicted)
    with exclusive(arguments.output):
        supervise(arguments, spec)


if __name__ == "__main__":
    main()
