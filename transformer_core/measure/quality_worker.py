"""A side of a race for quality, in each of its processes: it trains in turns, like the sides of
comparisons, and between them reports how well it translates."""

from typing import Any

import sacrebleu

from schemas.config.training import Evaluation
from schemas.results import Translation
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.measure.quality import Look, Seen
from transformer_core.measure.sessions import RaceOrder
from transformer_core.measure.turns_worker import take_turns
from transformer_core.observe.turns import refuse
from transformer_core.run.program import Program
from transformer_core.training.assemble import Setup
from transformer_core.training.evaluation import validation_loss
from transformer_core.training.translate import translate_rows


def work(order: RaceOrder, program: Program) -> None:
    """Train, and translate between the turns."""
    tokenizer_file = order.data / "tokenizer.json"

    def answer(setup: Setup, task: Any) -> Any:
        if not isinstance(task, Look):
            return refuse(task)
        tokenizer = load_tokenizer(tokenizer_file, setup.validation_store.manifest.tokenizer_sha256)
        return look(setup, tokenizer, task)

    take_turns(order, program, order.spec, answer)


def look(setup: Setup, tokenizer: Any, task: Look) -> Seen:
    """The validation loss and BLEU of the training as it is now. Every rank of a training computes
    both: a model that is sharded goes forward on all of them together."""
    store, model = setup.validation_store, setup.model
    loss = validation_loss(setup)
    greedily = Evaluation(beam_size=1, max_pairs=task.pairs)
    training = model.training
    model.eval()
    found = translate_rows(model, setup.precision, setup.device, store, greedily)
    guesses = {row: detokenize(tokenizer, ids) for row, ids in found}
    model.train(training)
    rows = sorted(guesses)
    hypotheses = [guesses[row] for row in rows]
    references = [detokenize(tokenizer, ids) for ids in store.target_rows(rows)]
    shown = rows[: task.samples]
    sources = [detokenize(tokenizer, ids) for ids in store.source_rows(shown)]
    samples = [
        Translation(source=source, reference=reference, hypothesis=guess)
        for source, reference, guess in zip(sources, references, hypotheses, strict=False)
    ]
    return Seen(loss, sacrebleu.corpus_bleu(hypotheses, [references]).score, samples)
