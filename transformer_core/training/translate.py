"""Evaluates a trained model on the test split: its translations, or the loss and continuations of
texts."""

import math
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

from schemas.config.data import AnyCorpus
from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.config.training import EXTRA_TOKENS, Evaluation
from schemas.results import Continuation, EvaluationResult, TextQuality, Translation
from transformer_core.common.digests import check
from transformer_core.common.endings import damaged
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.job import detokenize, load_tokenizer
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.decoding import beam_search, greedy
from transformer_core.models.loss import token_loss_sum
from transformer_core.models.objective import objective_of
from transformer_core.models.registry import build_model
from transformer_core.training.checkpoint import replace_buffer
from transformer_core.training.precision import Precision, build_precision

LARGEST = 700.0  # loss in nats whose exponential still fits into a float

_WITHOUT_SPACES = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "cn"), "zh"),
    **dict.fromkeys(("ja", "jp", "th", "lo", "km", "my", "bo", "dz"), "char"),
    **dict.fromkeys(("jpn", "tha", "lao", "khm", "mya", "bur", "bod", "tib", "dzo"), "char"),
}
"""How sacrebleu divides texts in languages that put no spaces between words: for Chinese its own
scheme, otherwise by characters, which needs no dictionary. By the codes of ISO 639-1 and of ISO
639-2 and 639-3, such as jpn_Jpan, and of two countries that often stand for their languages."""


def bleu_in(corpus: AnyCorpus) -> sacrebleu.BLEU:
    """BLEU for the target language of a corpus: a sentence without spaces must not count as one word."""
    language = re.split("[-_]", getattr(corpus, "target_language", "").lower())[0]
    return sacrebleu.BLEU(tokenize=_WITHOUT_SPACES.get(language))


def load_weights(model: nn.Module, weights: Path) -> None:
    """Loads the weights of a file into ``model``; ConfigError if they are damaged or belong to
    another model."""
    check(weights)
    try:
        # safetensors' load_model refuses tensors that do not fill their memory.
        saved = load_file(weights)
        for name, buffer in [*model.named_buffers()]:
            if name in saved and saved[name].shape != buffer.shape:
                replace_buffer(model, name, saved[name].to(buffer.device))
        state = model.state_dict(keep_vars=True)
        missing, unknown = model.load_state_dict(saved, strict=False)
        # A tied tensor is saved under one of its names.
        found = {id(state[name]) for name in saved if name in state}
        wrong = [*unknown, *(name for name in missing if id(state[name]) not in found)]
        if wrong:
            raise RuntimeError(
                f"loading state_dict: only the file or only the model has {', '.join(wrong)}"
            )
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and "loading state_dict" not in str(error):
            raise  # out of memory, for example
        raise damaged(weights, error) from None


def evaluate(
    spec: RunSpec,
    settings: Evaluation,
    weights: Path,
    store: PairStore,
    tokenizer_file: Path,
    device: torch.device,
) -> EvaluationResult:
    """Evaluates the model in ``weights`` on ``device`` with the test split: BLEU and chrF of its
    translations of the first pairs, or the loss of a language model and continuations of the first
    texts.

    The references are the decoded target ids, since the tokenizer loses nothing. Raises Unsupported
    if this machine cannot compute in the precision of ``spec``.
    """
    model = build_model(spec.model, store.manifest.vocabulary)
    load_weights(model, weights)
    model.to(device).eval()
    precision = build_precision(spec.training.precision, device)
    tokenizer = load_tokenizer(tokenizer_file, store.manifest.tokenizer_sha256)
    started = time.perf_counter()
    ended: dict[str, Any] = {"variant": spec.variant, "status": "ok", "reason": None}
    if isinstance(spec.task, LanguageModel):
        return EvaluationResult(
            **ended,
            bleu=None,
            chrf=None,
            signature=None,
            pairs=len(store),
            texts=_quality(spec, model, precision, device, store),
            continuations=_continuations(
                settings.samples, spec.task, model, precision, store, tokenizer
            ),
            seconds=time.perf_counter() - started,
            samples=[],
        )
    found = translate_rows(model, precision, device, store, settings)
    hypotheses = {row: detokenize(tokenizer, ids) for row, ids in found}
    seconds = time.perf_counter() - started

    order = sorted(hypotheses)
    guesses = [hypotheses[row] for row in order]
    sources = [detokenize(tokenizer, ids) for ids in store.source_rows(order)]
    references = [detokenize(tokenizer, ids) for ids in store.target_rows(order)]
    metric = bleu_in(spec.corpus)
    bleu = metric.corpus_score(guesses, [references])
    chrf = sacrebleu.corpus_chrf(guesses, [references])
    shown = [*zip(sources, references, guesses, strict=True)][: settings.samples]
    return EvaluationResult(
        **ended,
        bleu=bleu.score,
        chrf=chrf.score,
        signature=str(metric.get_signature()),
        pairs=len(order),
        seconds=seconds,
        samples=[Translation(source=s, reference=r, hypothesis=h) for s, r, h in shown],
    )


def translate_rows(
    model: nn.Module,
    precision: Precision,
    device: torch.device,
    store: PairStore,
    settings: Evaluation,
) -> Iterator[tuple[int, list[int]]]:
    """Yields row and translation, as token ids, of the first pairs of ``store``, batch by batch."""
    batches = evaluation_batches(store, settings.max_pairs, pairs_per_batch=settings.batch_pairs)
    for rows, batch in tqdm(batches, desc="translate", unit="batch", disable=None):
        source = batch.source.to(device)
        # A limit of the whole batch would make a translation depend on its neighbors.
        limits = ((batch.source != PAD).sum(1) + EXTRA_TOKENS).tolist()
        with torch.inference_mode(), precision.autocast():
            if settings.beam_size == 1:
                found = greedy(model, source, limits)
            else:
                found = beam_search(
                    model, source, settings.beam_size, settings.length_penalty, limits
                )
        yield from ((int(row), ids) for row, ids in zip(rows, found, strict=True))


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
    count: int,
    task: LanguageModel,
    model: nn.Module,
    precision: Precision,
    store: PairStore,
    tokenizer: Tokenizer,
) -> list[Continuation]:
    """Continues the first suitable text of each of the first rows."""
    texts = _first_texts(store, count, task.prompt)
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
    """Tokens of texts that begin in a row and are longer than a prompt, at most one from each row."""
    found: list[list[int]] = []
    for row in range(len(store)):
        if len(found) == count:
            break
        (ids,) = store.target_rows([row])
        limits = [0, *(np.flatnonzero(ids == EOS) + 1).tolist(), len(ids)]
        # The first row begins with a text; others may begin with the rest of one.
        begins = limits if row == 0 else limits[1:]
        whole = (ids[a:b].tolist() for a, b in pairwise(begins))
        text = next((text for text in whole if len(text) > prompt), None)
        if text is not None:
            found.append(text)
    return found
