"""The profile of a variant: ``python -m transformer_core.observe.profile_job``.

Nsight Systems or torch.profiler records a few warmed-up steps in a separate run, never the timed
one: one trace per rank. Like a timed run it always has a result: the traces, or a status with the
reason why there are none.

Reports of Nsight Systems and their SQLite exports contain the run's environment, host name and
process list, so keep them private. The breakdown and the report of a study contain none of these.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from schemas.config.measurement import Profiling
from schemas.errors import Unsupported
from schemas.results import Capture
from transformer_core.common.digests import write_result
from transformer_core.common.endings import count_failure
from transformer_core.common.files import write_text
from transformer_core.common.folder_locks import exclusive
from transformer_core.common.progress import log
from transformer_core.machine.provenance import collect
from transformer_core.observe.nsys import (
    Nsys,
    environment,
    find_nsys,
    rank_files,
    rows,
    telling_lines,
)
from transformer_core.run.launcher import (
    launcher,
    lends_processes_only,
    uses_gpus,
    worker_environment,
)
from transformer_core.run.order import TrainingJob, TrainingOrder
from transformer_core.run.statuses import Outcome, clear_outcomes, end_with_parent, read_outcomes
from transformer_core.run.supervisor import (
    attempt,
    end_as_stopped,
    how_ended,
    lend_processes,
    wait_for,
    write_order,
)

_ALWAYS_TIMED = 11
"""Number of first steps in which DDP's reducer times itself at any sample rate, and on CUDA waits for
its timers (torch, ``Reducer::should_collect_runtime_stats``)."""


class CaptureOrder(TrainingOrder):
    """Order to train a few steps and record the last of them."""

    work = "transformer_core.observe.profiler"

    profiling: Profiling
    profiler: Literal["nsys", "torch"] = "torch"  # the profiler that records

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, profile"

    @property
    def warmup_steps(self) -> int:
        """Steps before the profiled ones, enough to skip a technique's different first steps."""
        parallel = self.spec.parallel
        least = parallel.message_hook.steps_before + 1 if parallel.message_hook else 0
        if parallel.buckets and uses_gpus(self.spec):
            least = max(least, _ALWAYS_TIMED)
        return max(self.profiling.warmup_steps, least)


def rank_file(rank: int) -> str:
    """The file that a worker writes last, after it succeeded."""
    return f"rank-{rank}.json"


NSYS_LOG = "nsys.log"


@dataclass(frozen=True)
class Choice:
    profiler: Literal["nsys", "torch"]
    reason: str
    nsys: Nsys | None = None

    @property
    def version(self) -> str:
        return self.nsys.version if self.nsys else metadata.version("torch")


def choose(profiling: Profiling, nsys: Nsys | None, cuda: bool, nodes: int = 1) -> Choice:
    """The profiler that the study requests, or the best available one.

    Raises Unsupported if the study requires Nsight Systems, which cannot be used here.
    """
    asked = profiling.profiler
    if asked == "torch":
        return Choice("torch", "The study asks for torch.profiler.")
    if asked == "nsys":
        if nsys is None:
            raise Unsupported(
                "The study asks for Nsight Systems, but nsys is not on the PATH or does not start. "
                "Install it, or set profiling.profiler to auto or torch."
            )
        if nodes > 1:
            raise Unsupported(
                f"The study asks for Nsight Systems, which is started on one host, not on {nodes}. "
                "Set profiling.profiler to auto or torch."
            )
        return Choice("nsys", "The study asks for Nsight Systems.", nsys)
    if nodes > 1:
        return Choice("torch", f"The run is on {nodes} hosts.")
    if not cuda:
        return Choice("torch", "There is no CUDA device whose kernels Nsight Systems could record.")
    if nsys is None:
        return Choice("torch", "nsys is not on the PATH.")
    return Choice("nsys", "nsys is on the PATH and there is a CUDA device.", nsys)


def capture_with_nsys(order: CaptureOrder, nsys: Nsys) -> Outcome | None:
    """Records with Nsight Systems; returns None if it succeeded, else how it ended.

    Ends this process if it was asked to stop.
    """
    order, spec = order.model_copy(update={"profiler": "nsys"}), order.spec
    try:
        within = nsys.command(order.output, uses_gpus(spec))
        variables = worker_environment(spec, environment())
        command = under(within, launcher(spec, order.worker, fresh=True))
    except (ValueError, Unsupported) as error:
        return unusable(f"{error}.")
    with (order.output / NSYS_LOG).open("wb") as text:
        child = subprocess.Popen(
            [*command, str(write_order(order))],
            env=variables,
            stdout=text,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        code = wait_for(child)
    if code in (-signal.SIGTERM, -signal.SIGINT):
        end_as_stopped(order.output, code)
    if outcome := read_outcomes(order.output):
        return outcome
    said = telling_lines((order.output / NSYS_LOG).read_text(errors="replace"))
    if not (order.output / rank_file(0)).exists():
        return unusable(f"nsys ended with {how_ended(code)} before training: {said}")
    return judge(nsys, order.output, spec.world_size, said)


def under(within: Sequence[str], command: Sequence[str]) -> list[str]:
    """The ``command`` of a launcher, which ends in -m and a module, with every process started
    ``within`` another command."""
    *start, _, module = command
    program = [*within, sys.executable, "-m", module]
    return program if start == [sys.executable] else [*start, "--no-python", *program]


def judge(nsys: Nsys, output: Path, world_size: int, said: str) -> Outcome | None:
    """None if every rank has an export with a kernel, else an outcome with the reason.

    Adds the names of the files to the ranks' records. ``said`` is the output of nsys.
    """
    for rank in range(world_size):
        files = rank_files(nsys, output, rank)
        if not files:
            return unusable(f"nsys left no SQLite export for rank {rank}: {said}")
        try:
            kernels, ranges = rows(output / files[0])
        except sqlite3.Error as error:
            return unusable(f"nsys left a damaged export for rank {rank} ({error}): {said}")
        if not kernels:
            return unusable(
                f"nsys recorded no kernel on rank {rank}, but {ranges} NVTX events: there is no "
                "CUDA device in the run, or its kernels may not be traced here."
            )
        path = output / rank_file(rank)
        record = json.loads(path.read_text())
        record["rank"]["files"] = files
        write_text(path, json.dumps(record))
    return None


def unusable(reason: str) -> Outcome:
    """The end of a capture whose profiler cannot be used here."""
    return Outcome(status="unsupported", reason=reason)


def supervise(order: CaptureOrder) -> None:
    """Chooses a profiler, records, and makes sure that capture.json says how it ended."""
    started = datetime.now(UTC)
    output, spec, profiling = order.output, order.spec, order.profiling
    clear(output)
    (output / "capture.json").unlink(missing_ok=True)
    outcome: Outcome | None
    try:
        choice = choose(profiling, find_nsys(), uses_gpus(spec), spec.machine.nodes)
    except Unsupported as error:
        choice, outcome = Choice("nsys", "The study asks for it."), unusable(str(error))
    else:
        log.info("%s: %s. %s", order.title, choice.profiler, choice.reason)
        if choice.nsys is None:
            outcome = attempt(order, output / rank_file(0))
        else:
            outcome = capture_with_nsys(order, choice.nsys)
            # An outcome with a rank comes from the run itself, not from the profiler.
            if outcome and outcome.rank is None and profiling.profiler == "auto":
                log.info("%s: %s Trying torch.profiler.", order.title, outcome.reason)
                clear(output)
                choice = Choice("torch", f"Nsight Systems could not: {outcome.reason}")
                outcome = attempt(order, output / rank_file(0))
    record = result(order, choice, outcome, started)
    if outcome is not None:
        if choice.profiler == "nsys":  # attempt() has said how it ended
            log.info("%s: %s, %s", order.title, outcome.status, outcome.reason)
        clear(output)
        if outcome.again:
            count_failure(output / "capture.json")
    write_result(output / "capture.json", record.model_dump_json(indent=1) + "\n")
    for path in output.glob("rank-*[0-9].json"):
        path.unlink()


def result(
    order: CaptureOrder, choice: Choice, outcome: Outcome | None, started: datetime
) -> Capture:
    """The record of a capture that ended with ``outcome``, or successfully if that is None."""
    known: dict[str, Any] = {}
    if outcome is None:
        outcome = Outcome(status="ok", reason=None)
        paths = (order.output / rank_file(rank) for rank in range(order.spec.world_size))
        done = [json.loads(path.read_text()) for path in paths]
        known = {"profiler": choice.profiler, "profiler_version": choice.version}
        known |= {"topology": done[0]["topology"], "ranks": [record["rank"] for record in done]}
    return outcome.result(
        Capture,
        variant=order.spec.variant,
        profiler_reason=choice.reason,
        warmup_steps=order.warmup_steps,
        first_step=order.warmup_steps + 1,
        last_step=order.warmup_steps + order.profiling.steps,
        provenance=collect(order.spec, order.command, started),
        **known,
    )


def clear(output: Path) -> None:
    """Removes leftovers of earlier captures, except capture.json."""
    clear_outcomes(output)
    for path in [*output.glob("rank-*"), *output.glob(NSYS_LOG)]:
        path.unlink()


class ProfileJob(TrainingJob):
    """Profiles a few steps of a variant in a separate run; ``output`` is the folder of the
    traces."""

    kind = "profile"

    profiling: Profiling = Profiling()
    """Profiler, warmup_steps and steps."""

    def run(self, log_file: Path | None) -> None:
        how = {"output": self.output, "profiling": self.profiling}
        order = self.order(CaptureOrder, log_file, self.output / "capture.json", **how)
        if lends_processes_only() and order.profiling.profiler == "nsys":
            return  # the first host reports this as unsupported
        lend_processes(order)
        with exclusive(order.output):
            supervise(order)
