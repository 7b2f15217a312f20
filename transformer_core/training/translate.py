"""Translating the test split with a trained model, and scoring it."""

import time
from collections.abc import Iterator
from pathlib import Path

import sacrebleu
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn
from tqdm import tqdm

from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.results import EvaluationResult, Translation
from transformer_core.common.digests import check
from transformer_core.common.endings import damaged
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.models.decoding import beam_search, greedy
from transformer_core.models.registry import build_model
from transformer_core.training.precision import Precision, build_precision

EXTRA_TOKENS = 50
"""A translation may be this many tokens longer than its source (arXiv 1706.03762, 6.1)."""


def load_weights(model: nn.Module, weights: Path) -> None:
    """Loads the weights of a file into ``model``; ConfigError if they are damaged or belong to
    another model."""
    check(weights)
    try:
        load_model(model, str(weights))
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and "loading state_dict" not in str(error):
            raise  # out of memory, for example
        raise damaged(weights, error) from None


def load_trained(
    spec: RunSpec, weights: Path, vocabulary: int, device: torch.device
) -> tuple[nn.Module, Precision]:
    model = build_model(spec.model, vocabulary)
    load_weights(model, weights)
    model.to(device).eval()
    precision = build_precision(spec.training.precision, device)
    return model, precision


def evaluate(
    spec: RunSpec, weights: Path, store: PairStore, tokenizer_file: Path, device: torch.device
) -> EvaluationResult:
    """BLEU and chrF of the model in ``weights`` on the first pairs of the test split, translated
    on ``device``.

    The references are the decoded target ids: the tokenizer loses nothing. Raises Unsupported
    where this machine cannot compute in the precision of ``spec``.
    """
    model, precision = load_trained(spec, weights, store.manifest.vocabulary, device)
    tokenizer = load_tokenizer(tokenizer_file, store.manifest.tokenizer_sha256)
    started = time.perf_counter()
    found = translate_rows(model, precision, device, store, spec.evaluation)
    hypotheses = {row: detokenize(tokenizer, ids) for row, ids in found}
    seconds = time.perf_counter() - started

    order = sorted(hypotheses)
    guesses = [hypotheses[row] for row in order]
    sources = [detokenize(tokenizer, ids) for ids in store.source_rows(order)]
    references = [detokenize(tokenizer, ids) for ids in store.target_rows(order)]
    metric = sacrebleu.BLEU()
    bleu = metric.corpus_score(guesses, [references])
    chrf = sacrebleu.corpus_chrf(guesses, [references])
    shown = list(zip(sources, references, guesses, strict=True))[: spec.evaluation.samples]
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
            for source, reference, guess in shown
        ],
    )


def translate_rows(
    model: nn.Module,
    precision: Precision,
    device: torch.device,
    store: PairStore,
    settings: Evaluation,
) -> Iterator[tuple[int, list[int]]]:
    """Row and translation, as token ids, of the first pairs of ``store``, a batch at a time."""
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
        yield from ((int(row), ids) for row, ids in zip(rows, found, strict=True))
