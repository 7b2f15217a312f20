"""A short training for the certificates: start its processes, and record how they ended.

Like a timed run it always has a result: the trajectory, or a status that says why there is none.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import safetensors.numpy

from schemas.results import Trajectory
from schemas.study import RunSpec
from transformer_core.data.files import atomic_path, write_text
from transformer_core.measure.launch import lends_processes_only
from transformer_core.measure.outcome import clear_outcomes
from transformer_core.measure.progress import log, log_to
from transformer_core.measure.provenance import collect
from transformer_core.measure.run import (
    attempt,
    exclusive,
    reproducing_command,
    run_workers,
    worker_options,
)

WORKER = "transformer_core.measure.trajectory"
FILES = ("trajectory.json", "initial.safetensors", "final.safetensors")


def supervise(arguments: argparse.Namespace, spec: RunSpec) -> None:
    """Run the workers and make sure that trajectory.json says how they ended."""
    started = datetime.now(UTC)
    output: Path = arguments.output
    clear_outcomes(output)
    for name in FILES:
        (output / name).unlink(missing_ok=True)
    options = worker_options(arguments)
    outcome = attempt(spec, WORKER, options, output / "trajectory.json")
    if outcome is None:
        return
    log.info("%s, short run: %s, %s", spec.variant, outcome["status"], outcome["reason"])
    for name in FILES[1:]:
        with atomic_path(output / name) as temporary:
            safetensors.numpy.save_file({}, temporary)
    ended = Trajectory.model_validate(
        {
            "name": spec.variant,
            "status": outcome["status"],
            "reason": outcome["reason"],
            "traceback": outcome["traceback"],
            "topology": None,
            "seeds": [],
            "provenance": collect(spec, arguments.command, started),
        }
    )
    write_text(output / "trajectory.json", ended.model_dump_json(indent=1) + "\n")
    clear_outcomes(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the short run")
    parser.add_argument("--seeds", type=int, default=1, help="trainings, each with its own seed")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    arguments = parser.parse_args()
    arguments.command = reproducing_command(arguments.output / "trajectory.json")
    log_to(arguments.log_file)
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    if lends_processes_only():
        sys.exit(run_workers(spec, WORKER, worker_options(arguments)))
    with exclusive(arguments.output):
        supervise(arguments, spec)


if __name__ == "__main__":
    main()
