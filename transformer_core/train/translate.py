"""Translate the test split with a trained model and score it: the ``evaluate`` job."""

import argparse
import time
from pathlib import Path

import sacrebleu
import torch
from safetensors.torch import load_model
from tqdm import tqdm

from schemas.errors import Unsupported
from schemas.results import EvaluationResult, Repeat, ShardManifest, Status, Translation
from schemas.study import RunSpec
from transformer_core.data.feeding import evaluation_batches
from transformer_core.data.files import write_text
from transformer_core.data.store import PairStore, open_shards
from transformer_core.data.tokenizer import detokenize, load_tokenizer
from transformer_core.model.build import build_model
from transformer_core.model.decoding import beam_search, greedy
from transformer_core.train.precision import build_precision

EXTRA_TOKENS = 50
"""A translation may be this many tokens longer than its source (arXiv 1706.03762, 6.1)."""


def evaluate(
    spec: RunSpec, weights: Path, store: PairStore, vocabulary: int, tokenizer_file: Path
) -> EvaluationResult:
    """BLEU and chrF of the model in ``weights`` on the first pairs of the test split.

    The references are the decoded target ids: the tokenizer loses nothing. Raises Unsupported
    where this machine cannot compute in the precision of ``spec``.
    """
    cuda = torch.cuda.is_available() and spec.machine.device != "cpu"
    device = torch.device("cuda" if cuda else "cpu")
    model = build_model(spec.model, vocabulary)
    load_model(model, str(weights))
    model.to(device).eval()
    precision = build_precision(spec.training.precision, device)
    tokenizer = load_tokenizer(tokenizer_file)
    settings = spec.evaluation
    hypotheses: dict[int, str] = {}
    started = time.perf_counter()
    batches = evaluation_batches(store, settings.max_pairs, pairs_per_batch=settings.batch_pairs)
    for rows, batch in tqdm(batches, desc="translate", unit="batch", disable=None):
        source = batch.source.to(device)
        limit = source.shape[1] + EXTRA_TOKENS
        with torch.inference_mode(), precision.autocast():
            if settings.beam_size == 1:
                found = greedy(model, source, limit)
            else:
                found = beam_search(
                    model, source, settings.beam_size, settings.length_penalty, limit
                )
        for row, ids in zip(rows, found, strict=True):
            hypotheses[int(row)] = detokenize(tokenizer, ids)
    seconds = time.perf_counter() - started

    order = sorted(hypotheses)
    guesses = [hypotheses[row] for row in order]
    sources = [detokenize(tokenizer, ids) for ids in store.source_rows(order)]
    references = [detokenize(tokenizer, ids) for ids in store.target_rows(order)]
    metric = sacrebleu.BLEU()
    bleu = metric.corpus_score(guesses, [references])
    chrf = sacrebleu.corpus_chrf(guesses, [references])
    return EvaluationResult(
        variant=spec.variant,
        status="ok",
        reason=None,
        bleu=bleu.score,
        chrf=chrf.score,
        signature=str(metric.get_signature()),
        pairs=len(order),
        seconds=seconds,
        samples=[
            Translation(source=source, reference=reference, hypothesis=guess)
            for source, reference, guess in list(zip(sources, references, guesses, strict=True))[
                : settings.samples
            ]
        ],
    )


def not_evaluated(variant: str, status: Status, reason: str | None) -> EvaluationResult:
    """The evaluation of a run that left no model, or one that this machine cannot use."""
    return EvaluationResult(
        variant=variant,
        status=status,
        reason=reason,
        bleu=None,
        chrf=None,
        signature=None,
        pairs=0,
        seconds=None,
        samples=[],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="spec.json of the variant")
    parser.add_argument("--run", type=Path, required=True, help="metrics.json of the repeat")
    parser.add_argument("--weights", type=Path, required=True, help="its model.safetensors")
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--output", type=Path, required=True, help="evaluation.json to write")
    arguments = parser.parse_args()
    run = Repeat.model_validate_json(arguments.run.read_text())
    if run.status != "ok":
        result = not_evaluated(run.variant, run.status, run.reason)
    else:
        manifest_path = arguments.data / "shards" / "test" / "manifest.json"
        manifest = ShardManifest.model_validate_json(manifest_path.read_text())
        try:
            result = evaluate(
                RunSpec.model_validate_json(arguments.spec.read_text()),
                arguments.weights,
                open_shards(manifest_path),
                manifest.vocabulary,
                arguments.data / "tokenizer.json",
            )
        except Unsupported as error:
            result = not_evaluated(run.variant, "unsupported", str(error))
    write_text(arguments.output, result.model_dump_json(indent=2) + "\n")


if __name__ == "__main__":
    main()
