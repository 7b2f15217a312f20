"""Rules that span several sections of a run spec."""

import math
from collections.abc import Iterator

from schemas.config.batching import FixedSize, PackedRows, TokenBudget
from schemas.config.decoder_only import DecoderOnly, HuggingFaceCausal
from schemas.config.model import (
    AnyModel,
    SdpaAttention,
    StreamsQkv,
    Transformer,
    UnpaddedTokens,
)
from schemas.config.run_spec import RunSpec
from schemas.config.task import LanguageModel
from transformer_core.study.checks.format_rules import of_formats
from transformer_core.study.checks.imported_rules import of_imported
from transformer_core.study.checks.task_rules import Violation, of_task
from transformer_core.study.reservations import parameters

MOST_WEIGHTS = 10**12
"""Weights of a model: 4 TB in 32 bits, with training state 16 TB."""
MOST_THREADS = 4_096
"""Threads of a run on one host: ten times the cores of a large one. Systems allow some 32,000
processes and threads in all, and what takes them all can no longer be stopped."""
MOST_TOKENS = 1_000_000_000
"""Tokens or pairs of a global batch."""


def violations(spec: RunSpec) -> Iterator[Violation]:
    """Every rule that ``spec`` breaks."""
    yield from of_task(spec)
    yield from of_imported(spec)
    yield from _model(spec)
    yield from _machine(spec)
    yield from _batching(spec)
    yield from _rows(spec)
    yield from _training(spec)
    yield from _parallel(spec)
    yield from of_formats(spec)
    if spec.evaluation.beam_size > spec.tokenizer.vocabulary:
        yield (
            "evaluation.beam_size",
            spec.evaluation.beam_size,
            f"is more than there are tokens to go on with "
            f"(tokenizer.vocabulary = {spec.tokenizer.vocabulary})",
            f"take at most {spec.tokenizer.vocabulary}",
        )


def _model(spec: RunSpec) -> Iterator[Violation]:
    model = spec.model
    if isinstance(model, DecoderOnly | HuggingFaceCausal):
        stack = f"{model.layers} layers"
    else:
        stack = f"{model.encoder_layers} + {model.decoder_layers} layers"
        yield from _width(model)
    together = isinstance(model, Transformer) and model.memory_products == "together"
    if together and spec.parallel.sharded:
        yield (
            "model.memory_products",
            "together",
            "needs the weights of all decoder layers at once, which FSDP gathers layer by layer",
            "take per_layer, or another strategy",
        )
    weights = parameters(spec, spec.tokenizer.vocabulary)
    if weights > MOST_WEIGHTS:
        yield (
            "model.d_model",
            model.d_model,
            f"makes a model of {weights:.1e} weights, with d_ff = {model.d_ff} and {stack}",
            f"take sizes that make at most {MOST_WEIGHTS:.0e}",
        )
    yield from _attention(spec)
    qkv = getattr(model, "qkv", None)
    if isinstance(qkv, StreamsQkv) and spec.machine.device == "cpu":
        yield (
            "model.qkv.kind",
            "streams",
            "needs CUDA streams, but machine.device is cpu",
            "take separate or fused, or set machine.device to auto or cuda",
        )


def _width(model: AnyModel) -> Iterator[Violation]:
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


def _attention(spec: RunSpec) -> Iterator[Violation]:
    model = spec.model
    if not isinstance(model, Transformer | DecoderOnly):
        return
    if not isinstance(model.attention, SdpaAttention):
        return
    field, backend = "model.attention.backend", model.attention.backend
    if backend == "auto":
        return
    if spec.machine.device == "cpu":
        yield (
            field,
            backend,
            "names a kernel of CUDA devices, but machine.device is cpu",
            "take auto, or set machine.device to auto or cuda",
        )
    if backend in ("flash", "cudnn") and not spec.training.precision.numbers.results:
        yield (
            field,
            backend,
            f"computes in 16 bits, but training.precision is {spec.training.precision.kind}",
            "take precision: {kind: bf16}, or the backend efficient",
        )
    masked = isinstance(spec.task, LanguageModel) and spec.task.texts == "masked"
    if isinstance(model, DecoderOnly) and backend == "flash" and masked:
        yield (
            field,
            backend,
            "takes no mask, and with task.texts: masked there is one",
            "take task.texts: joined, or the backend efficient",
        )
    elif (
        isinstance(model, Transformer)
        and backend == "flash"
        and not isinstance(model.tokens, UnpaddedTokens)
    ):
        yield (
            field,
            backend,
            "takes no mask, and with tokens: {kind: padded} there is one",
            "take tokens: {kind: unpadded}, or the backend efficient",
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
    hosts = machine.nodes if machine.link is not None else 1
    processes = hosts * machine.devices_per_node
    if machine.threads * processes > MOST_THREADS:
        yield (
            "machine.threads",
            machine.threads,
            f"makes {machine.threads * processes} threads on one host "
            f"(machine.devices_per_node = {machine.devices_per_node})",
            f"take at most {MOST_THREADS // processes}, or 0 for an even share of the cores",
        )


def _batching(spec: RunSpec) -> Iterator[Violation]:
    batching, parts = spec.batching, spec.parts
    divided = (
        f"a global batch is divided into {parts} parts "
        f"({spec.machine.nodes} nodes x {spec.machine.devices_per_node} devices x "
        f"{spec.training.accumulation.micro_batches} micro-batches)"
    )
    unit = "pairs" if isinstance(batching, FixedSize) else "tokens"
    size = batching.scaled_pairs if isinstance(batching, FixedSize) else batching.scaled_tokens
    if size > MOST_TOKENS:
        yield (
            "batching.scale",
            batching.scale,
            f"makes global batches of {size:,} {unit}",
            f"take at most {MOST_TOKENS / (size / batching.scale):g}, or fewer {unit}",
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
        longest, texts = spec.longest, isinstance(spec.task, LanguageModel)
        if batching.scaled_tokens < longest * parts:
            yield _small_batch(
                "tokens",
                batching.tokens,
                batching.scale,
                longest * parts,
                f"{divided}, and {_longest(spec)}: some device would have no work",
                "a smaller task.context" if texts else "a smaller filter.max_tokens",
            )


def _longest(spec: RunSpec) -> str:
    if isinstance(spec.task, LanguageModel):
        return f"a row has {spec.longest} tokens (task.context = {spec.task.context})"
    return f"a pair may have {spec.longest} tokens (filter.max_tokens = {spec.filter.max_tokens})"


def _rows(spec: RunSpec) -> Iterator[Violation]:
    if isinstance(spec.task, LanguageModel):
        return
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
    loss = training.loss
    if loss.only_32_bits and training.precision.numbers.results:
        yield (
            "training.loss.kind",
            loss.kind,
            f"{loss.only_32_bits}, and with training.precision {training.precision.kind} these "
            "have 16 bits",
            "take loss: {kind: one_pass}, or precision: {kind: fp32}",
        )
    if loss.of_hidden:
        yield from _loss_of_hidden(spec)
    warmup = training.schedule.warmup
    if warmup > training.steps:
        yield (
            "training.schedule.warmup",
            warmup,
            f"is longer than the training ({training.steps} steps)",
            f"take at most {training.steps}",
        )


def _parallel(spec: RunSpec) -> Iterator[Violation]:
    hook = spec.parallel.message_hook
    if hook is not None and hook.steps_before >= spec.training.steps:
        yield (
            "parallel.hook.start_step",
            hook.steps_before,
            f"comes after the training (training.steps = {spec.training.steps}): nothing would be "
            "compressed",
            "take a smaller start_step, or more steps",
        )


def _loss_of_hidden(spec: RunSpec) -> Iterator[Violation]:
    if not isinstance(spec.model, Transformer | DecoderOnly | HuggingFaceCausal):
        yield (
            "training.loss.kind",
            spec.training.loss.kind,
            f"needs the decoder's output, and a model of kind {spec.model.kind} gives logits",
            "take loss: {kind: whole}, or model: {kind: transformer}",
        )
    if spec.parallel.gathers_logits:
        yield (
            "training.loss.kind",
            spec.training.loss.kind,
            f"holds no logits that {spec.parallel.kind} could gather",
            "set parallel.local_loss: true, or take loss: {kind: whole}",
        )
