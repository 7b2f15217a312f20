"""The profile of a variant: ``python -m transformer_core.profiling.capture``.

A few warmed-up steps in a run of their own, never the timed one, recorded by Nsight Systems or by
torch.profiler: one trace per rank. Like a timed run it always has a result: the traces, or a status
that says why there are none.

A report of Nsight Systems, and its SQLite export, hold the environment, host name and process list
of the run: keep them to yourself. What the breakdown and the report of a study take from them does
not.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from schemas.errors import Unsupported
from schemas.parallel import Ddp, PowerSgdHook
from schemas.profile import Profiling
from schemas.results import Capture, RankCapture, Topology
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure import nvml
from transformer_core.measure.launch import launcher, lends_processes_only, threads_per_process
from transformer_core.measure.outcome import clear_outcomes, end_with_parent, read_outcomes
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import (
    ALLOCATOR,
    attempt,
    exclusive,
    how_ended,
    reproducing_command,
    run_workers,
    worker_options,
)
from transformer_core.profiling.capture_nsys import (
    Nsys,
    environment,
    find_nsys,
    rank_files,
    rows,
    telling_lines,
)

WORKER = "transformer_core.profiling.capture_worker"
NSYS_LOG = "nsys.log"


@dataclass(frozen=True)
class Choice:
    """Which profiler records, and why."""

    profiler: Literal["nsys", "torch"]
    reason: str
    nsys: Nsys | None = None

    @property
    def version(self) -> str:
        """Version of the profiler."""
        return self.nsys.version if self.nsys else metadata.version("torch")


def choose(profiling: Profiling, nsys: Nsys | None, cuda: bool, nodes: int = 1) -> Choice:
    """The profiler that the study asks for, or the better one of those that are here.

    Raises Unsupported if it asks for Nsight Systems where that cannot be used.
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


def uses_cuda(spec: RunSpec) -> bool:
    """Whether the run will be on GPUs, as far as can be told without torch."""
    return spec.machine.device == "cuda" or (spec.machine.device == "auto" and bool(nvml.gpus()[0]))


def warmup_of(spec: RunSpec, profiling: Profiling) -> int:
    """Steps before the profiled ones: enough for what a technique does differently at first."""
    parallel = spec.parallel
    if isinstance(parallel, Ddp) and isinstance(parallel.hook, PowerSgdHook):
        return max(profiling.warmup_steps, parallel.hook.start_step + 1)
    return profiling.warmup_steps


def capture_with_torch(
    spec: RunSpec, options: Sequence[str], output: Path
) -> dict[str, Any] | None:
    """Let torch.profiler record; None if it did, else how it ended."""
    return attempt(spec, WORKER, [*options, "--profiler", "torch"], output / rank_file(0))


def capture_with_nsys(
    spec: RunSpec, options: Sequence[str], output: Path, nsys: Nsys
) -> dict[str, Any] | None:
    """Let Nsight Systems record; None if it did, else how it ended.

    Ends this process if it was asked to stop.
    """
    try:
        within = nsys.command(output, uses_cuda(spec))
    except ValueError as error:
        return ended("unsupported", f"{error}.")
    stopped = False
    with (output / NSYS_LOG).open("wb") as text:
        threads = str(threads_per_process(spec))
        child = subprocess.Popen(
            [*under(within, launcher(spec, WORKER, anew=True)), *options, "--profiler", "nsys"],
            env=ALLOCATOR
            | environment()
            | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            stdout=text,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )

        def hand_on(number: int, _: object) -> None:
            nonlocal stopped
            stopped = True
            child.send_signal(number)

        before = {n: signal.signal(n, hand_on) for n in (signal.SIGTERM, signal.SIGINT)}
        code = child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped or code < 0:
        print(f"{output}: stopped before it was done ({how_ended(code)}).", file=sys.stderr)
        sys.exit(1)
    if outcome := read_outcomes(output):
        return outcome
    said = telling_lines((output / NSYS_LOG).read_text(errors="replace"))
    if not (output / rank_file(0)).exists():
        return ended("unsupported", f"nsys ended with {how_ended(code)} before training: {said}")
    return judge(nsys, output, spec.world_size, said)


def under(within: Sequence[str], command: Sequence[str]) -> list[str]:
    """The ``command`` of a launcher, which ends in -m and a module, with every process ``within``
    another command."""
    *start, _, module = command
    program = [*within, sys.executable, "-m", module]
    return program if start == [sys.executable] else [*start, "--no-python", *program]


def judge(nsys: Nsys, output: Path, world_size: int, said: str) -> dict[str, Any] | None:
    """None if every rank has an export with a kernel, else what is missing.

    The names of the files go into the ranks' records. ``said`` is what nsys told.
    """
    for rank in range(world_size):
        files = rank_files(nsys, output, rank)
        if not files:
            return ended("unsupported", f"nsys left no SQLite export for rank {rank}: {said}")
        kernels, ranges = rows(output / files[0])
        if not kernels:
            return ended(
                "unsupported",
                f"nsys recorded no kernel on rank {rank}, but {ranges} NVTX events: there is no "
                "CUDA device in the run, or its kernels may not be traced here.",
            )
        path = output / rank_file(rank)
        record = json.loads(path.read_text())
        record["rank"]["files"] = files
        write_text(path, json.dumps(record))
    return None


def ended(status: str, reason: str | None) -> dict[str, Any]:
    """How a capture ended, as the workers would tell it."""
    return {"status": status, "reason": reason, "traceback": None}


def supervise(arguments: argparse.Namespace, spec: RunSpec, profiling: Profiling) -> None:
    """Choose a profiler, let it record, and make sure that capture.json says how it ended."""
    started = datetime.now(UTC)
    output: Path = arguments.output
    clear(output)
    (output / "capture.json").unlink(missing_ok=True)
    options = worker_options(arguments)
    outcome: dict[str, Any] | None
    try:
        nodes = spec.machine.nodes
        choice = choose(profiling, find_nsys(), uses_cuda(spec), nodes)
    except Unsupported as error:
        choice, outcome = Choice("nsys", "The study asks for it."), ended("unsupported", str(error))
    else:
        log.info("%s, profile: %s. %s", spec.variant, choice.profiler, choice.reason)
        if choice.nsys is None:
            outcome = capture_with_torch(spec, options, output)
        else:
            outcome = capture_with_nsys(spec, options, output, choice.nsys)
            # With a rank, it is the run itself that ended so, under whatever profiler.
            if outcome and "rank" not in outcome and profiling.profiler == "auto":
                log.info("%s, profile: %s Trying torch.profiler.", spec.variant, outcome["reason"])
                clear(output)
                choice = Choice("torch", f"Nsight Systems could not: {outcome['reason']}")
                outcome = capture_with_torch(spec, options, output)
    record = result(arguments, spec, profiling, choice, outcome, started)
    if outcome is not None:
        log.info("%s, profile: %s, %s", spec.variant, outcome["status"], outcome["reason"])
        clear(output)
    write_text(output / "capture.json", record.model_dump_json(indent=1) + "\n")
    for path in output.glob("rank-*[0-9].json"):
        path.unlink()


def result(
    arguments: argparse.Namespace,
    spec: RunSpec,
    profiling: Profiling,
    choice: Choice,
    outcome: dict[str, Any] | None,
    started: datetime,
) -> Capture:
    """The record of a capture that ended as ``outcome`` says; well, if that is None."""
    done: list[dict[str, Any]] = []
    ended_as = outcome or ended("ok", None)
    if outcome is None:
        paths = (arguments.output / rank_file(rank) for rank in range(spec.world_size))
        done = [json.loads(path.read_text()) for path in paths]
    warmup = warmup_of(spec, profiling)
    return Capture(
        variant=spec.variant,
        status=ended_as["status"],
        reason=ended_as["reason"],
        traceback=ended_as["traceback"],
        profiler=choice.profiler if done else None,
        profiler_version=choice.version if done else None,
        profiler_reason=choice.reason,
        topology=Topology.model_validate(done[0]["topology"]) if done else None,
        warmup_steps=warmup,
        first_step=warmup + 1,
        last_step=warmup + profiling.steps,
        ranks=[RankCapture.model_validate(record["rank"]) for record in done],
        provenance=collect(spec, arguments.command, started),
    )


def rank_file(rank: int) -> str:
    """What a worker writes last, when all went well."""
    return f"rank-{rank}.json"


def clear(output: Path) -> None:
    """Remove what earlier captures left, but for capture.json."""
    clear_outcomes(output)
    for path in [*output.glob("rank-*"), *output.glob(NSYS_LOG)]:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.profiling.capture",
        description="Profile a few steps of a variant, in a run of their own.",
    )
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the variant")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument(
        "--profiling",
        default=Profiling().canonical_json(),
        help="profiler, warmup_steps and steps, as JSON (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    arguments.command = reproducing_command(arguments.output / "capture.json")
    log_to(arguments.log_file)
    # torch.profiler announces its start and stop to standard error, on every rank.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    profiling = Profiling.model_validate_json(arguments.profiling)
    if lends_processes_only():
        if profiling.profiler == "nsys":
            sys.exit()  # as the first host will say, it cannot be
        options = [*worker_options(arguments), "--profiler", "torch"]
        sys.exit(run_workers(spec, WORKER, options))
    with exclusive(arguments.output):
        supervise(arguments, spec, profiling)


if __name__ == "__main__":
    main()
