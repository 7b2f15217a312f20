"""A short training for the certificates: start its processes, and record how they ended.

Like a timed run it always has a result: the trajectory, or a status that says why there is none.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import safetensors.numpy

from schemas.config.run_spec import RunSpec
from schemas.results import Trajectory
from transformer_core.common.attempts import count_failure
from transformer_core.common.endings import program
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import seal, seal_file
from transformer_core.machine.provenance import collect
from transformer_core.run.folder_locks import exclusive
from transformer_core.run.job_options import job_parser
from transformer_core.run.order import TrainingOrder, shard_manifests
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt, lend_processes


class ShortRunOrder(TrainingOrder):
    """To train a few steps with each of some seeds, and to keep what every step computed."""

    seeds: int = 1
    """Trainings; the first has the seed of the spec, each of the others the next one."""

    first_look: int = 0
    """Seeds after which the final losses are compared with the reference's; if they decide, no more
    are trained. 0 for none."""

    reference: Path | None = None
    """The reference's trajectory.json, where there is something to look at."""

    margin: float = 0.0
    """Margin of the final loss."""

    budget: float = 0.0
    """Seconds after which no further seed is begun, beyond those of the first look."""

    dropout: float = 0.0
    """Dropout of the timed run, whose places are looked at; 0 looks at none."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, short run"


WORKER = "transformer_core.certify.short_run_worker"
RECORD = "trajectory.json"
WEIGHTS = ("initial.safetensors", "final.safetensors")


def supervise(order: ShortRunOrder, made_from: Sequence[Path]) -> None:
    """Run the workers, make sure that trajectory.json says how they ended, and seal what is there
    as ``made_from`` these files."""
    started = datetime.now(UTC)
    for name in (*WEIGHTS, RECORD):
        (order.output / name).unlink(missing_ok=True)
        seal_file(order.output / name).unlink(missing_ok=True)
    outcome = attempt(order, WORKER, order.output / RECORD)
    if outcome is not None:
        _write_unfinished(order, outcome, started)
        if outcome.again:
            count_failure(order.output / RECORD)
    for name in WEIGHTS:
        seal(order.output / name)
    # The weights are of this very training, and not of one that ended alike.
    seal(order.output / RECORD, [*made_from, *(order.output / name for name in WEIGHTS)])


def _write_unfinished(order: ShortRunOrder, outcome: Outcome, started: datetime) -> None:
    """The files of a run that is not ok: a status, no steps, no weights."""
    for name in WEIGHTS:
        with atomic_path(order.output / name) as temporary:
            safetensors.numpy.save_file({}, temporary)
    ended = Trajectory(
        name=order.spec.variant,
        **outcome.of_a_result,
        topology=None,
        seeds=[],
        provenance=collect(order.spec, order.command, started),
    )
    write_text(order.output / RECORD, ended.model_dump_json(indent=1) + "\n")


@program
def main() -> None:
    parser = job_parser(
        "transformer_core.certify.short_run",
        "Train a few steps and keep what each of them computed.",
        "folder of the results",
    )
    parser.add_argument("--seeds", type=int, default=1, help="trainings, each with its own seed")
    parser.add_argument("--first-look", type=int, default=0, help="seeds that may be enough")
    parser.add_argument("--reference", type=Path, help="trajectory.json that they are judged by")
    parser.add_argument("--margin", type=float, default=0.0, help="margin of the final loss")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds for further seeds")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of the timed run")
    given = parser.parse_args()
    log_to(given.log_file)
    order = ShortRunOrder(
        spec=read_record(given.spec, RunSpec),
        data=given.data,
        output=given.output,
        command=reproducing_command(given.output / RECORD),
        log_file=given.log_file,
        seeds=given.seeds,
        first_look=given.first_look,
        reference=given.reference,
        margin=given.margin,
        budget=given.budget,
        dropout=given.dropout,
    )
    lend_processes(order, WORKER)
    with exclusive(order.output):
        supervise(order, [given.spec, *shard_manifests(given.data)])


if __name__ == "__main__":
    sys.exit(main())
