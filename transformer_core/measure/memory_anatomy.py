"""The memory of a variant by purpose.

Takes a few steps in fresh processes, never in the timed run, and records the memory of every rank at
every milestone, by purpose. Like a timed run it always has a result, with a reason if it fails.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.results import MemoryResult
from transformer_core.common.digests import write_result
from transformer_core.common.folder_locks import workplace
from transformer_core.common.records import read_record
from transformer_core.machine.provenance import collect
from transformer_core.observe.profile_job import rank_file
from transformer_core.run.order import TrainingJob, TrainingOrder
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt, lend_processes


def steps_of(spec: RunSpec) -> int:
    """Steps until all further steps are alike: the optimizer creates its state in the first, DDP
    rebuilds its buckets in the second, and PowerSGD starts late."""
    hook = spec.parallel.message_hook
    return 3 if hook is None else hook.steps_before + 3


class AnatomyOrder(TrainingOrder):
    """Order to train a few steps on the heaviest batch and track their memory."""

    work = "transformer_core.measure.memory_anatomy_worker"
    shares_cores = True

    steps: int
    evaluation: Evaluation

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, memory"


def measure(order: AnatomyOrder) -> MemoryResult:
    """Runs the workers; returns their result, or how they ended."""
    started = datetime.now(UTC)
    spec, folder = order.spec, order.output
    for file in folder.glob("rank-*.json"):
        file.unlink()
    outcome = attempt(order, folder / rank_file(0), folder.with_suffix(".json"))
    known = {
        "variant": spec.variant,
        "steps": order.steps,
        "provenance": collect(spec, order.command, started),
    }
    if outcome is not None:
        return outcome.result(MemoryResult, **known)
    found = [json.loads((folder / rank_file(r)).read_text()) for r in range(spec.world_size)]
    ranks = [rank for of_process in found for rank in of_process["ranks"]]
    # Ranks that share a host see the same processes.
    foreign = {(p["device"], p["pid"]): p for of_process in found for p in of_process["foreign"]}
    known |= {name: found[0][name] for name in ("topology", "parameters", "decoding")}
    known |= {"ranks": ranks, "foreign": [*foreign.values()]}
    return Outcome(status="ok", reason=None).result(MemoryResult, **known)


class MemoryAnatomy(TrainingJob):
    """Measures what a variant uses memory for."""

    kind = "memory"

    steps: int = Field(default=0, ge=0)
    """Training steps; 0 for as many as necessary."""
    evaluation: Evaluation
    """How the trained model decodes."""

    def run(self, log_file: Path | None) -> None:
        steps = self.steps or steps_of(read_record(self.spec, RunSpec))
        more = {"steps": steps, "evaluation": self.evaluation}
        order = self.order(AnatomyOrder, log_file, self.output, **more)
        lend_processes(order)
        with workplace(order.output):
            result = measure(order)
            write_result(self.output, result.model_dump_json(indent=1) + "\n")
