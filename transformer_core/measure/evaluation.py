"""The evaluation of a trained model: it translates the test split and is scored by BLEU.

Like a run it always has a result: BLEU and translations, or a status that says why there are none.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from schemas.config.parallel import Single
from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation as Settings
from schemas.results import EvaluationResult, Repeat
from transformer_core.common.digests import check_all, write_result
from transformer_core.common.files import write_text
from transformer_core.common.folder_locks import workplace
from transformer_core.common.records import read_record
from transformer_core.run.order import TrainingJob, TrainingOrder
from transformer_core.run.statuses import Outcome
from transformer_core.run.supervisor import attempt

if TYPE_CHECKING:
    from transformer_core.run.worker import Program

RESULT = "evaluation.json"


class EvaluationOrder(TrainingOrder):
    """Order to translate the test split with a trained model."""

    settings: Settings
    weights: Path  # model.safetensors of the run

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, evaluation"


def evaluation(order: EvaluationOrder, run: Repeat, output: Path) -> EvaluationResult:
    """Runs the worker; returns its result, or a status with the reason."""
    outcome: Outcome | None = Outcome(status=run.status, reason=run.reason)
    if run.status == "ok" and order.settings.max_pairs:
        outcome = attempt(order, order.output / RESULT, output)
    if outcome is None:
        return read_record(order.output / RESULT, EvaluationResult)
    return outcome.result(EvaluationResult, variant=run.variant, pairs=0)


def alone(spec: RunSpec) -> RunSpec:
    """``spec`` in one process on one device, with all cores of the job."""
    one = {"nodes": 1, "devices_per_node": 1, "link": None, "threads": 0}
    machine = spec.machine.model_copy(update=one)
    return spec.model_copy(update={"parallel": Single(), "machine": machine})


class Evaluation(TrainingJob):
    """Translates the test split with a trained model, and scores it."""

    kind = "evaluation"

    settings: Settings
    metrics: Path
    """metrics.json of the repeat."""
    weights: Path
    """Its model.safetensors."""

    def run(self, log_file: Path | None) -> None:
        manifest, tokenizer = self.data / "shards/test/manifest.json", self.data / "tokenizer.json"
        made_from = [self.spec, self.metrics, self.weights, manifest, tokenizer]
        check_all(made_from)
        repeat = read_record(self.metrics, Repeat)
        spec = alone(read_record(self.spec, RunSpec))
        more = {"spec": spec, "settings": self.settings, "weights": self.weights}
        order = self.order(EvaluationOrder, log_file, self.output, **more)
        with workplace(order.output):
            found = evaluation(order, repeat, self.output)
            write_result(self.output, found.model_dump_json(indent=2) + "\n", made_from)


def work(order: EvaluationOrder, program: "Program") -> None:
    """Evaluates the model in a separate process, and writes the result."""
    # Imported here: the waiting job does not need torch.
    from transformer_core.data.sharding.shard_store import open_shards
    from transformer_core.training.translate import evaluate

    device = program.process.device
    store = open_shards(order.data / "shards/test/manifest.json")
    tokenizer = order.data / "tokenizer.json"
    found = evaluate(order.spec, order.settings, order.weights, store, tokenizer, device)
    write_text(order.output / RESULT, found.model_dump_json(indent=2) + "\n")
