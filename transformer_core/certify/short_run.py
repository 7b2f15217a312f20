"""The short training that a certificate compares: starts its processes and records how they ended.

Like a timed run, it always has a result: the trajectory, or a status that explains why there is none.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import safetensors.numpy

from schemas.base import Schema, Steps
from schemas.config.training import AnySchedule
from schemas.results import Trajectory
from transformer_core.common.digests import forget, record
from transformer_core.common.files import atomic_path, write_text
from transformer_core.common.folder_locks import exclusive
from transformer_core.machine.provenance import collect
from transformer_core.run.order import TrainingJob, TrainingOrder, shard_manifests
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt, lend_processes


class LateSteps(Schema):
    """The schedule of the timed run, for the steps that are checked after resuming."""

    schedule: AnySchedule
    steps: Steps
    """Steps of the timed run."""


class ShortRunSettings(Schema):
    """The settings of a short run: its seeds, the comparison that may stop it, and its dropout."""

    seeds: int = 1
    """Number of trainings; the first uses the seed of the spec, the others consecutive ones."""
    first_look: int = 0
    """Number of seeds after which the final losses are compared with the reference's: if they are
    enough for a verdict, no more seeds are trained. 0 trains all seeds."""
    reference: Path | None = None
    """The reference's trajectory.json; None if nothing is compared."""
    margin: float = 0.0
    """Allowed relative difference of the final loss."""
    budget: float = 0.0
    """Seconds after which no further seed starts; the seeds of the first look always run."""
    dropout: float = 0.0
    """Dropout probability of the timed run; 0 skips the checks of dropout."""
    late: LateSteps | None = None
    """Schedule and steps of the timed run; None for those of the spec."""


class ShortRunOrder(ShortRunSettings, TrainingOrder):
    """Trains a few steps with each seed, and records the results of every step."""

    work = "transformer_core.certify.short_run_worker"
    shares_cores = True

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, short run"


RECORD = "trajectory.json"
WEIGHTS = ("initial.safetensors", "final.safetensors")


def supervise(order: ShortRunOrder, made_from: Sequence[Path]) -> None:
    """Runs the workers, makes sure that trajectory.json records how they ended, and records that
    the results are ``made_from`` these files."""
    started = datetime.now(UTC)
    for name in (*WEIGHTS, RECORD):
        (order.output / name).unlink(missing_ok=True)
        forget(order.output / name)
    outcome = attempt(order, order.output / RECORD, order.output / RECORD)
    if outcome is not None:
        _write_unfinished(order, outcome, started)
    for name in WEIGHTS:
        record(order.output / name)
    # Ties the trajectory to these weights: another training may end with the same outcome.
    record(order.output / RECORD, [*made_from, *(order.output / name for name in WEIGHTS)])


def _write_unfinished(order: ShortRunOrder, outcome: Outcome, started: datetime) -> None:
    """Writes the files of a run that is not ok: a status, no steps, no weights."""
    for name in WEIGHTS:
        with atomic_path(order.output / name) as temporary:
            safetensors.numpy.save_file({}, temporary)
    provenance = collect(order.spec, order.command, started)
    ended = outcome.result(Trajectory, name=order.spec.variant, provenance=provenance)
    write_text(order.output / RECORD, ended.model_dump_json(indent=1) + "\n")


class ShortRun(ShortRunSettings, TrainingJob):
    """Trains a few steps with each seed and records their results in the folder ``output``."""

    kind = "short_run"

    def run(self, log_file: Path | None) -> None:
        settings = {name: getattr(self, name) for name in ShortRunSettings.model_fields}
        target = self.output / RECORD
        order = self.order(ShortRunOrder, log_file, target, output=self.output, **settings)
        lend_processes(order)
        with exclusive(order.output):
            supervise(order, [self.spec, *shard_manifests(self.data)])
