"""Rules that span several sections of a run spec."""

import math
from collections.abc import Iterator
from typing import Any

from schemas.data import FixedSize, PackedRows, TokenBudget
from schemas.model import StreamsQkv, Transformer
from schemas.parallel import Central, DataParallel
from schemas.study import RunSpec
from schemas.train import ChunkedLoss

Violation = tuple[str, Any, str, str]
"""Field, value, what is wrong, what to do."""


def violations(spec: RunSpec) -> Iterator[Violation]:
    """Every rule that ``spec`` breaks."""
    yield from _model(spec)
    yield from _machine(spec)
    yield from _batching(spec)
    yield from _rows(spec)
    yield from _training(spec)


def _model(spec: RunSpec) -> Iterator[Violation]:
    model = spec.model
    if model.d_model % model.heads:
        divisors = [n for n in range(1, model.d_model + 1) if model.d_model % n == 0]
        near = sorted(divisors, key=lambda n: abs(n - model.heads))[:2]
        yield (
            "model.heads",
            model.heads,
            f"does not divide model.d_model = {model.d_model}",
            f"take {' or '.join(map(str, sorted(near)))} heads, or change model.d_model",
        )
    if model.d_model % 2:
        yield (
            "model.d_model",
            model.d_model,
            "is odd, but sinusoidal positions come in pairs of sine and cosine",
            f"take {model.d_model + 1}",
        )
    on_streams = isinstance(model, Transformer) and isinstance(model.qkv, StreamsQkv)
    if on_streams and spec.machine.device == "cpu":
        yield (
            "model.qkv.kind",
            "streams",
            "needs CUDA streams, but machine.device is cpu",
            "take separate or fused, or set machine.device to auto or cuda",
        )


def _machine(spec: RunSpec) -> Iterator[Violation]:
    machine = spec.machine
    if machine.link is not None and machine.nodes != 2:
        yield (
            "machine.nodes",
            machine.nodes,
            "is not 2, but machine.link joins two hosts",
            "take nodes: 2, or link: null",
        )


def _batching(spec: RunSpec) -> Iterator[Violation]:
    batching, parts = spec.batching, spec.parts
    divided = (
        f"a global batch is divided into {parts} parts "
        f"({spec.machine.nodes} nodes x {spec.machine.devices_per_node} devices x "
        f"{spec.training.accumulation.micro_batches} micro-batches)"
    )
    if isinstance(batching, FixedSize) and batching.scaled_pairs < parts:
        yield _small_batch(
            "pairs",
            batching.pairs,
            batching.scale,
            parts,
            f"{divided}: some device would have no work",
            "fewer devices or micro-batches",
        )
    if isinstance(batching, TokenBudget):
        longest = 2 * (spec.filter.max_tokens + 1)
        if batching.scaled_tokens < longest * parts:
            yield _small_batch(
                "tokens",
                batching.tokens,
                batching.scale,
                longest * parts,
                f"{divided}, and a pair may have {longest} tokens "
                f"(filter.max_tokens = {spec.filter.max_tokens}): some device would have no work",
                "a smaller filter.max_tokens",
            )


def _rows(spec: RunSpec) -> Iterator[Violation]:
    if isinstance(spec.batching.rows, PackedRows) and not isinstance(spec.model, Transformer):
        yield (
            "batching.rows.kind",
            "packed",
            f"needs a model that tells the pairs of a row apart, which one of kind "
            f"{spec.model.kind} does not",
            "take rows: {kind: padded}, or model: {kind: transformer}",
        )


def _small_batch(
    unit: str, size: int, scale: float, needed: int, message: str, other_remedy: str
) -> Violation:
    """A global batch of fewer than ``needed`` pairs or tokens; a scale that is set is to blame."""
    if scale == 1:
        remedy = f"take at least {needed} {unit}, or {other_remedy}"
        return f"batching.{unit}", size, message, remedy
    least = math.ceil(1000 * needed / size) / 1000
    enough = math.ceil(needed / scale)
    remedy = f"take at least {least:g}, or at least {enough} {unit}, or {other_remedy}"
    message = f"makes global batches of {round(size * scale)} {unit}; {message}"
    return "batching.scale", scale, message, remedy


def _training(spec: RunSpec) -> Iterator[Violation]:
    training, measurement = spec.training, spec.measurement
    needed = measurement.warmup_steps + measurement.window_steps
    if training.steps < needed:
        yield (
            "training.steps",
            training.steps,
            f"leaves no timed window: measurement.warmup_steps + window_steps = {needed}",
            f"take at least {needed} steps, or shorten the warm-up or the window",
        )
    if isinstance(training.loss, ChunkedLoss):
        yield from _chunked_loss(spec)
    warmup = training.schedule.warmup
    if warmup > training.steps:
        yield (
            "training.schedule.warmup",
            warmup,
            f"is longer than the training ({training.steps} steps)",
            f"take at most {training.steps}",
        )


def _chunked_loss(spec: RunSpec) -> Iterator[Violation]:
    if not isinstance(spec.model, Transformer):
        yield (
            "training.loss.kind",
            "chunked",
            f"needs the decoder's output, and a model of kind {spec.model.kind} gives logits",
            "take loss: {kind: whole}, or model: {kind: transformer}",
        )
    if isinstance(spec.parallel, Central | DataParallel) and not spec.parallel.local_loss:
        yield (
            "training.loss.kind",
            "chunked",
            f"holds no logits that {spec.parallel.kind} could gather",
            "set parallel.local_loss: true, or take loss: {kind: whole}",
        )
