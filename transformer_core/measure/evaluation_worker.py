"""The process of an evaluation. Started by :mod:`transformer_core.measure.evaluation`."""

from transformer_core.common.files import write_text
from transformer_core.data.sharding.shard_store import open_shards
from transformer_core.measure.evaluation import RESULT, EvaluationOrder
from transformer_core.run.worker import Program
from transformer_core.training import continue_texts, translate

JUDGES = {"translation": translate.evaluate, "language_model": continue_texts.evaluate}
"""The evaluation of a trained model, by the kind of its task."""


def work(order: EvaluationOrder, program: Program) -> None:
    """Evaluates the model, and writes the result."""
    device = program.process.device
    store = open_shards(order.data / "shards/test/manifest.json")
    tokenizer = order.data / "tokenizer.json"
    judge = JUDGES[order.spec.task.kind]
    found = judge(order.spec, order.weights, store, store.manifest.vocabulary, tokenizer, device)
    write_text(order.output / RESULT, found.model_dump_json(indent=2) + "\n")
