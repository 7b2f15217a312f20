"""Evaluates a trained language model: its loss on the test split, and its continuations."""

import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.results import Continuation, EvaluationResult, TextQuality
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.data.tokenizing.special_tokens import BOS, EOS
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective_of
from transformer_core.training.precision import Precision
from transformer_core.training.translate import load_trained

LARGEST = 700.0  # nats whose exponential is still a number


def evaluate(
    spec: RunSpec, weights: Path, store: PairStore, tokenizer_file: Path, device: torch.device
) -> EvaluationResult:
    """Loss of the model in ``weights`` on the texts of the test split, and continuations of the
    first of them, computed on ``device``.

    Raises Unsupported where this machine cannot compute in the precision of ``spec``.
    """
    assert isinstance(spec.task, LanguageModel), "somebody asked for the loss of texts"
    model, precision = load_trained(spec, weights, store.manifest.vocabulary, device)
    tokenizer = load_tokenizer(tokenizer_file, store.manifest.tokenizer_sha256)
    started = time.perf_counter()
    quality = _quality(spec, model, precision, device, store)
    continuations = _continuations(spec, spec.task, model, precision, store, tokenizer)
    return EvaluationResult(
        variant=spec.variant,
        status="ok",
        reason=None,
        bleu=None,
        chrf=None,
        signature=None,
        pairs=len(store),
        seconds=time.perf_counter() - started,
        samples=[],
        texts=quality,
        continuations=continuations,
    )


@torch.inference_mode()
def _quality(
    spec: RunSpec, model: nn.Module, precision: Precision, device: torch.device, store: PairStore
) -> TextQuality:
    objective = objective_of(spec, model)
    total, tokens = 0.0, store.manifest.target_tokens
    for _, rows in tqdm(evaluation_batches(store), desc="loss", unit="batch", disable=None):
        batch = rows.to(device)
        with precision.autocast():
            logits = objective.logits(batch.source, batch.target_input)
        total += float(token_loss_sum(logits, batch.target_output, 0.0))
    assert store.manifest.texts is not None, "the store holds texts"
    loss, size = total / tokens, store.manifest.texts.bytes
    return TextQuality(
        loss=loss,
        perplexity=math.exp(loss) if loss < LARGEST else None,
        bits_per_byte=total / math.log(2) / size,
        tokens=tokens,
        bytes=size,
    )


def _continuations(
    spec: RunSpec,
    task: LanguageModel,
    model: nn.Module,
    precision: Precision,
    store: PairStore,
    tokenizer: Tokenizer,
) -> list[Continuation]:
    """Continues the first text of each of the first rows, where it has more tokens than a
    prompt."""
    texts = _first_texts(store, spec.evaluation.samples, task.prompt)
    prompts = [[BOS, *text[: task.prompt]] for text in texts]
    if not prompts:
        return []
    with precision.autocast():
        greedy, drawn = (
            model.generate(prompts, task.continuation, sampling)  # type: ignore[operator]
            for sampling in (None, task.sampling)
        )
    return [
        Continuation(
            prompt=detokenize(tokenizer, text[: task.prompt]),
            reference=detokenize(tokenizer, text[task.prompt :][: task.continuation]),
            greedy=detokenize(tokenizer, one),
            drawn=detokenize(tokenizer, other),
        )
        for text, one, other in zip(texts, greedy, drawn, strict=True)
    ]


def _first_texts(store: PairStore, count: int, prompt: int) -> list[list[int]]:
    """Tokens of texts that begin within a row and are longer than a prompt, one of a row."""
    found: list[list[int]] = []
    for row in range(len(store)):
        if len(found) == count:
            break
        (ids,) = store.target_rows([row])
        limits = [0, *(np.flatnonzero(ids == EOS) + 1).tolist(), len(ids)]
        # The first row begins with a text; what others begin with may be the rest of one.
        begins = limits if row == 0 else limits[1:]
        whole = (ids[a:b].tolist() for a, b in pairwise(begins))
        text = next((text for text in whole if len(text) > prompt), None)
        if text is not None:
            found.append(text)
    return found
