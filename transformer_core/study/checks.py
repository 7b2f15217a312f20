"""Rules that span several sections of a study or a run spec: devices and batches, number formats and
compiling, requirements of a task on the other sections, names in a study.
"""

import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas.base import Schema
from schemas.config.data import (
    SPLITS,
    TEXT_KINDS,
    AnyCorpus,
    DatasetsCorpus,
    FixedSize,
    PackedRows,
    Split,
    TextCorpus,
    TextPair,
    TextsCorpus,
    UrlCorpus,
)
from schemas.config.model import (
    MARIAN_POSITIONS,
    AnyLanguageModel,
    AnyModel,
    Compiling,
    DecoderOnly,
    HuggingFace,
    HuggingFaceCausal,
    ImportedModel,
    LearnedPositions,
    SdpaAttention,
    SizedModel,
    StreamsQkv,
    Transformer,
    UnpaddedTokens,
)
from schemas.config.parallel import Ddp, LocalSteps, Single
from schemas.config.run_spec import ImportedTask, LanguageModel, RunSpec, ScriptTask
from schemas.config.study import Study
from schemas.config.training import EXTRA_TOKENS
from schemas.errors import ConfigProblem, nearest
from schemas.results.common import BASELINE, BEST
from transformer_core.common.endings import unreadable
from transformer_core.study.reservations import devices_on_a_host, parameters
from transformer_core.study.users_files import named_files
from transformer_core.techniques.residual_norm import ResidualNorm
from transformer_core.techniques.schedule_free import ScheduleFreeAdamW

Violation = tuple[str, Any, str, str]  # field, value, problem, remedy
MOST_WEIGHTS = 10**12  # weights of a model: 4 TB in 32 bits, with training state 16 TB
MOST_THREADS = 4_096
"""Threads of a run on one host: ten times the cores of a large one. Systems allow some 32,000
processes and threads in all; a run that takes them all can no longer be stopped."""
MOST_TOKENS = 1_000_000_000  # tokens or pairs of a global batch


def violations(spec: RunSpec) -> Iterator[Violation]:
    yield from _of_task(spec)
    yield from _of_imported(spec)
    yield from _model(spec)
    yield from _machine(spec)
    yield from _batching(spec)
    yield from _training(spec)
    yield from _parallel(spec)
    yield from _formats(spec)


def _model(spec: RunSpec) -> Iterator[Violation]:
    model = spec.model
    if isinstance(model, DecoderOnly | HuggingFaceCausal):
        stack = f"{model.layers} layers"
    else:
        stack = f"{model.encoder_layers} + {model.decoder_layers} layers"
    if not isinstance(model, ImportedModel):  # whose sizes are its own affair
        yield from _width(model)
    together = isinstance(model, Transformer) and model.memory_products == "together"
    if together and spec.parallel.sharded:
        message = "needs all decoder layers' weights at once, but FSDP gathers them layer by layer"
        remedy = "use per_layer, or another strategy"
        yield "model.memory_products", "together", message, remedy
    most = MARIAN_POSITIONS - EXTRA_TOKENS - 1  # with an end token
    translates = not isinstance(spec.task, LanguageModel)
    if translates and isinstance(model, HuggingFace) and spec.filter.max_tokens > most:
        message = (
            f"is too many for the {MARIAN_POSITIONS} positions of MarianMT: a translation may be "
            f"{EXTRA_TOKENS} tokens longer than its source"
        )
        remedy = f"use at most {most}, or another kind of model"
        yield "filter.max_tokens", spec.filter.max_tokens, message, remedy
    weights = parameters(spec, spec.tokenizer.vocabulary)
    if weights > MOST_WEIGHTS:
        message = f"makes a model of {weights:.1e} weights, with d_ff = {model.d_ff} and {stack}"
        remedy = f"use sizes that make at most {MOST_WEIGHTS:.0e}"
        yield "model.d_model", model.d_model, message, remedy
    yield from _attention(spec)
    qkv = getattr(model, "qkv", None)
    if isinstance(qkv, StreamsQkv) and spec.machine.device == "cpu":
        message = "needs CUDA streams, but machine.device is cpu"
        remedy = "use separate or fused, or set machine.device to auto or cuda"
        yield "model.qkv.kind", "streams", message, remedy


def _width(model: AnyModel | AnyLanguageModel) -> Iterator[Violation]:
    if model.d_model % model.heads and "head_dim" not in getattr(model, "options", ()):
        divisors = [n for n in range(1, model.d_model + 1) if model.d_model % n == 0]
        near = sorted(divisors, key=lambda n: abs(n - model.heads))[:2]
        message = f"does not divide model.d_model = {model.d_model}"
        remedy = f"use {' or '.join(map(str, sorted(near)))} heads, or change model.d_model"
        yield "model.heads", model.heads, message, remedy
    if isinstance(model, SizedModel) and model.d_model % 2:
        message = "is odd, but sinusoidal positions come in pairs of sine and cosine"
        remedy = f"use {model.d_model + 1}"
        yield "model.d_model", model.d_model, message, remedy


def _attention(spec: RunSpec) -> Iterator[Violation]:
    model, field = spec.model, "model.attention.backend"
    if not isinstance(model, Transformer | DecoderOnly):
        return
    backend = model.attention.backend if isinstance(model.attention, SdpaAttention) else "auto"
    if backend == "auto":
        return
    if spec.machine.device == "cpu":
        message = "is a CUDA kernel, but machine.device is cpu"
        remedy = "use auto, or set machine.device to auto or cuda"
        yield field, backend, message, remedy
    if backend in ("flash", "cudnn") and not spec.training.precision.numbers.results:
        message = f"computes in 16 bits, but training.precision is {spec.training.precision.kind}"
        remedy = "use precision: {kind: bf16}, or the backend efficient"
        yield field, backend, message, remedy
    masked = isinstance(spec.task, LanguageModel) and spec.task.texts == "masked"
    needs_mask = masked or isinstance(model, Transformer)
    if backend == "flash" and needs_mask and not isinstance(model.tokens, UnpaddedTokens):
        message = "takes no mask, but tokens: {kind: padded} needs one"
        remedy = "use tokens: {kind: unpadded}, or the backend efficient"
        yield field, backend, message, remedy


def _machine(spec: RunSpec) -> Iterator[Violation]:
    machine = spec.machine
    if machine.link is not None and machine.nodes != 2:
        message = "is not 2, but machine.link joins two hosts"
        remedy = "use nodes: 2, or link: null"
        yield "machine.nodes", machine.nodes, message, remedy
        return
    hosts = machine.nodes if machine.link is not None else 1
    processes = hosts * machine.devices_per_node
    if machine.threads * processes > MOST_THREADS:
        message = (
            f"makes {machine.threads * processes} threads on one host "
            f"(machine.devices_per_node = {machine.devices_per_node})"
        )
        remedy = f"use at most {MOST_THREADS // processes}, or 0 for an even share of the cores"
        yield "machine.threads", machine.threads, message, remedy


def _batching(spec: RunSpec) -> Iterator[Violation]:
    batching, parts, task = spec.batching, spec.parts, spec.task
    packed = isinstance(batching.rows, PackedRows)
    if packed and not isinstance(task, LanguageModel) and not isinstance(spec.model, Transformer):
        message = (
            f"needs a model that keeps the pairs of a row apart; one of kind {spec.model.kind} "
            "does not"
        )
        remedy = "use rows: {kind: padded}, or model: {kind: transformer}"
        yield "batching.rows.kind", "packed", message, remedy
    scale = batching.scale
    reason = (
        f"a global batch is divided into {parts} parts "
        f"({spec.machine.nodes} nodes x {spec.machine.devices_per_node} devices x "
        f"{spec.training.accumulation.micro_batches} micro-batches)"
    )
    if isinstance(batching, FixedSize):
        unit, given, size, needed = "pairs", batching.pairs, batching.scaled_pairs, parts
        other = "fewer devices or micro-batches"
    else:
        unit, given, size = "tokens", batching.tokens, batching.scaled_tokens
        needed = spec.longest * parts
        if isinstance(task, LanguageModel):
            reason += f", and a row has {spec.longest} tokens (task.context = {task.context})"
            other = "a smaller task.context"
        else:
            most = spec.filter.max_tokens
            reason += f", and a pair may have {spec.longest} tokens (filter.max_tokens = {most})"
            other = "a smaller filter.max_tokens"
    if size > MOST_TOKENS:
        message = f"makes global batches of {size:,} {unit}"
        remedy = f"use at most {MOST_TOKENS / (size / scale):g}, or fewer {unit}"
        yield "batching.scale", scale, message, remedy
    if size >= needed:
        return
    message, enough = f"{reason}: some device would have no work", math.ceil(needed / scale)
    remedy = f"at least {enough} {unit}, or {other}"
    if scale == 1:
        yield f"batching.{unit}", given, message, f"use {remedy}"
    else:
        message = f"makes global batches of {round(given * scale)} {unit}; {message}"
        least = math.ceil(1000 * needed / given) / 1000
        yield "batching.scale", scale, message, f"use at least {least:g}, or {remedy}"


def _training(spec: RunSpec) -> Iterator[Violation]:
    training, measurement = spec.training, spec.measurement
    needed = measurement.warmup_steps + measurement.window_steps
    if training.steps < needed:
        message = f"leaves no timed window: measurement.warmup_steps + window_steps = {needed}"
        remedy = f"use at least {needed} steps, or shorten the warm-up or the window"
        yield "training.steps", training.steps, message, remedy
    loss = training.loss
    if loss.only_32_bits and training.precision.numbers.results:
        message = (
            f"{loss.only_32_bits}, but with training.precision {training.precision.kind} these "
            "have 16 bits"
        )
        remedy = "use loss: {kind: one_pass}, or precision: {kind: fp32}"
        yield "training.loss.kind", loss.kind, message, remedy
    known = isinstance(spec.model, Transformer | DecoderOnly | HuggingFaceCausal)
    if loss.of_hidden and not known:
        message = f"needs the decoder's output, but a model of kind {spec.model.kind} gives logits"
        remedy = "use loss: {kind: whole}, or model: {kind: transformer}"
        yield "training.loss.kind", loss.kind, message, remedy
    if loss.of_hidden and spec.parallel.gathers_logits:
        message = f"leaves no logits for {spec.parallel.kind} to gather"
        remedy = "set parallel.local_loss: true, or use loss: {kind: whole}"
        yield "training.loss.kind", loss.kind, message, remedy
    warmup = training.schedule.warmup
    if warmup > training.steps:
        message = f"is longer than the training ({training.steps} steps)"
        remedy = f"use at most {training.steps}"
        yield "training.schedule.warmup", warmup, message, remedy


def _parallel(spec: RunSpec) -> Iterator[Violation]:
    if isinstance(spec.parallel, LocalSteps) and spec.training.steps % spec.parallel.every:
        message = f"does not divide training.steps = {spec.training.steps}: replicas would differ"
        remedy = "use a divisor of it"
        yield "parallel.every", spec.parallel.every, message, remedy
    optimizer = spec.training.optimizer
    if isinstance(spec.parallel, LocalSteps) and isinstance(optimizer, ScheduleFreeAdamW):
        message = (
            "computes its averages from a second sequence of weights, which ranks do not exchange "
            "under local_steps: each would validate and save another model"
        )
        remedy = "use parallel: {kind: ddp}, or optimizer: {kind: adamw}"
        yield "training.optimizer.kind", optimizer.kind, message, remedy
    if optimizer.state.divided and not isinstance(spec.parallel, Ddp):
        message = (
            "gives each rank the updates of the others, so all must update the same weights with the "
            f"same gradients, which they do not under {spec.parallel.kind}"
        )
        remedy = "use parallel: {kind: ddp}, or optimizer: {kind: adamw}"
        yield "training.optimizer.kind", optimizer.kind, message, remedy
    accumulation = spec.training.accumulation
    if isinstance(spec.parallel, Ddp) and spec.parallel.static_graph:
        needs = ""
        if not spec.parallel.overlap:
            needs = "parallel.overlap: true"
        elif accumulation.micro_batches > 1 and accumulation.synchronise == "last":
            needs = "training.accumulation.synchronise: every"
        if needs:
            message = "ends with an assertion in torch unless the first backward reduces gradients"
            yield "parallel.static_graph", True, message, f"use {needs}, or static_graph: false"
    hook = spec.parallel.message_hook
    if hook is not None and hook.steps_before >= spec.training.steps:
        message = (
            f"comes after the training (training.steps = {spec.training.steps}): nothing would be "
            "compressed"
        )
        remedy = "use a smaller start_step, or more steps"
        yield "parallel.hook.start_step", hook.steps_before, message, remedy


def _formats(spec: RunSpec) -> Iterator[Violation]:
    """Settings that cannot be computed, or stored, in 16 bits, or compiled."""
    precision, model = spec.training.precision, spec.model
    numbers = precision.numbers
    in_bf16 = numbers.products == "bf16" and numbers.results
    if getattr(model, "residual", "") == "bf16" and not in_bf16:
        message = f"is a 16-bit format, but training.precision is {precision.kind}"
        remedy = "use precision: {kind: bf16} or {kind: bf16_weights}, or residual: as_computed"
        yield "model.residual", "bf16", message, remedy
    if numbers.masters:
        yield from _low_weights(spec)
    if getattr(model, "compile", "none") != "none":
        yield from _compiled(spec, model.compile)  # type: ignore[union-attr]
    elif getattr(model, "kept_share", 1.0) < 1.0:
        message = "applies to the activations of compiled layers, but model.compile is none"
        remedy = "use model.compile: layers, or model.checkpoint: products"
        yield "model.kept_share", model.kept_share, message, remedy  # type: ignore[union-attr]


def _compiled(spec: RunSpec, kind: Compiling) -> Iterator[Violation]:
    reason, graphs = "", kind == "graphs"
    if not isinstance(spec.parallel, Single | Ddp):
        reason, remedy = f"does not support {spec.parallel.kind}", "parallel: {kind: ddp}"
    elif isinstance(getattr(spec.model, "tokens", None), UnpaddedTokens):
        reason, remedy = "does not support unpadded tokens", "model.tokens: {kind: padded}"
    elif isinstance(getattr(spec.model, "norm_method", None), ResidualNorm):
        reason, remedy = "generates that kernel itself", "model.norm_method: {kind: fused}"
    elif getattr(spec.model, "checkpoint", "none") != "none":
        reason, remedy = "does not recompute layers", "model.checkpoint: none"
    elif graphs and not isinstance(spec.parallel, Single):
        reason, remedy = "works in one process only", "parallel: {kind: single}, compile: layers"
    elif graphs and spec.training.accumulation.micro_batches > 1:
        reason = "does not accumulate gradients"
        remedy = "training.accumulation.micro_batches: 1, compile: layers"
    if reason:
        yield "model.compile", kind, reason, f"use {remedy}, or model.compile: none"


def _low_weights(spec: RunSpec) -> Iterator[Violation]:
    parallel, optimizer = spec.parallel, spec.training.optimizer
    reason = ""
    remedy = "use parallel: {kind: single} or {kind: ddp}"
    if not isinstance(parallel, Single | Ddp):
        reason = f"keeps all 32-bit weights on every rank, which {parallel.kind} does not"
        if parallel.kind == "fsdp":
            remedy = "use parallel.bf16: true, the same for FSDP, or parallel: ddp"
    elif parallel.message_hook is not None:
        reason = f"sends 16-bit gradients, which the hook {parallel.message_hook.kind} cannot take"
        remedy = "use parallel.hook: null"
    elif not optimizer.state.takes_masters:
        reason = f"needs an optimizer that keeps 32-bit weights, which {optimizer.kind} does not"
        remedy = "use optimizer: {kind: adamw}"
    elif not isinstance(spec.model, Transformer | DecoderOnly):
        reason = f"works with this project's models only, not with one of kind {spec.model.kind}"
        causal = isinstance(spec.model, HuggingFaceCausal)
        kind = "decoder_only" if causal else "transformer"
        remedy = f"use model: {{kind: {kind}}}, or precision: {{kind: bf16}}"
    if reason:
        yield "training.precision.kind", spec.training.precision.kind, reason, remedy


_NOT_USED = ("corpus", "filter", "tokenizer", "batching", "model")
_OF_VARIANTS = (
    *("repeats", "evaluation", "comparison", "comparisons", "self_test", "profiling", "limits"),
    *("certificate", "search", "quality", "link_check", "projection", "memory", "traces"),
)
"""Sections of a study on how variants are measured."""
REPORT = "results/report.html"


def _of_imported(spec: RunSpec) -> Iterator[Violation]:
    """Sections that are set, but that the user's own training does not read."""
    if not isinstance(spec.task, ImportedTask | ScriptTask):
        return
    for name in _NOT_USED:
        section, usual = getattr(spec, name), RunSpec.model_fields[name].default
        if section != usual:
            field = next(f for f in type(section).model_fields if _differs(section, usual, f))
            message = (
                f"is not used: with task.kind = {spec.task.kind}, your code has model and batches"
            )
            remedy = f"leave {name} out; settings of your code go into task"
            yield f"{name}.{field}", getattr(section, field), message, remedy


def _differs(section: object, usual: object, field: str) -> bool:
    return getattr(section, field) != getattr(usual, field, None)


def of_imported_study(study: Study, file: str) -> Iterator[ConfigProblem]:
    """Settings of variants and measurements, in a study of the user's own training."""
    if not isinstance(study.task, ImportedTask | ScriptTask):
        return
    if study.variants != [study.baseline]:
        message = f"is not used: with task.kind = {study.task.kind}, task.techniques lists changes"
        remedy = f"use variants: [{study.baseline}]"
        yield ConfigProblem(file, "variants", study.variants, message, remedy)
    message = f"is not used: with task.kind = {study.task.kind}, only the setting time counts"
    remedy = "leave it out, and set time"
    for name in _OF_VARIANTS:
        section = getattr(study, name)
        usual = Study.model_fields[name].get_default(call_default_factory=True)
        fields = type(section).model_fields if isinstance(section, Schema) else {}
        for field in fields:
            if _differs(section, usual, field) and (name, field) != ("comparison", "margin"):
                value = getattr(section, field)
                yield ConfigProblem(file, f"{name}.{field}", value, message, remedy)
        if not fields and section not in (None, usual):
            yield ConfigProblem(file, name, section, message, remedy)


def own_targets(study: Study) -> tuple[str, ...]:
    """Targets of a study of the user's own training; empty for other studies."""
    if not isinstance(study.task, ImportedTask | ScriptTask):
        return ()
    made = ("report.md", "tune/answer.json", "tune/changes.diff", "study.json")
    return REPORT, *(f"results/{name}" for name in (*made, f"runs/{study.baseline}/spec.json"))


def asked_in_vain(asked: list[str], study: Study) -> Iterator[ConfigProblem]:
    """Requested targets that a study of the user's own training does not have."""
    targets = own_targets(study)
    for target in asked if targets else ():
        if target.startswith("results/") and target not in targets:
            message = f"is not made for your own training (task.kind = {study.task.kind})"
            remedy = f"ask for {REPORT}"
            yield ConfigProblem("command line", "target", target, message, remedy)


def contradictions(study: Study, file: str) -> Iterator[ConfigProblem]:
    """All problems of a study whose sections are each valid."""
    yield from of_imported_study(study, file)
    yield from _of_corpus(study.corpus, file)
    files = {
        f"traces.{name}[{position}]": path
        for name, paths in study.traces.items()
        for position, path in enumerate(paths)
    }
    if study.tokenizer.kind != "bpe":
        files = {"tokenizer.path": study.tokenizer.path} | files
    for field, path in files.items():
        if message := _unusable(path):
            yield ConfigProblem(file, field, path, message, _another_path(path))
    for name, paths in study.traces.items():
        message, remedy = "", "choose another name"
        if name in study.variants:
            message = f"is that of a variant, whose profile is results/profiles/{name}"
        elif not paths:
            message, remedy = "has no file", "name a file"
        if message:
            yield ConfigProblem(file, f"traces.{name}", paths, message, remedy)
    beams, tokens = study.evaluation.beam_size, study.tokenizer.vocabulary
    if beams > tokens:
        message, remedy = f"is larger than tokenizer.vocabulary = {tokens}", f"use at most {tokens}"
        yield ConfigProblem(file, "evaluation.beam_size", beams, message, remedy)
    for problem in _of_quality(study):
        yield ConfigProblem(file, *problem)
    searched = study.memory.largest_batch.variants if study.memory else []
    for position, name in enumerate(searched):
        if name not in study.variants:
            field = f"memory.largest_batch.variants[{position}]"
            message, remedy = "is not among the study's variants", nearest(name, study.variants)
            yield ConfigProblem(file, field, name, message, remedy)
    lists: dict[str, Sequence[object]] = {
        "link_check.bandwidths": study.link_check.bandwidths if study.link_check else [],
        "memory.largest_batch.variants": searched,
        "quality.also": study.quality.also if study.quality else [],
        **{f"traces.{name}": paths for name, paths in study.traces.items()},
    }
    for field, values in lists.items():
        for position, value in enumerate(values):
            if value in values[:position]:
                message, remedy = "is given twice", "give each value once"
                yield ConfigProblem(file, f"{field}[{position}]", value, message, remedy)


def _of_quality(study: Study) -> Iterator[Violation]:
    if (quality := study.quality) is None:
        return
    if study.search is None:
        message = "trains what the search recommends, but search is null"
        yield "quality", None, message, "give search a budget, or leave quality out"
    warmup = (quality.schedule or study.training.schedule).warmup
    if quality.steps < warmup:
        message = f"ends before the warm-up of its schedule ({warmup} steps)"
        remedy = f"use at least {warmup}, or another quality.schedule"
        yield "quality.steps", quality.steps, message, remedy
    if quality.bleu is not None and isinstance(study.task, LanguageModel):
        message = "asks for a BLEU, but task.kind is language_model"
        remedy = "ask for a validation loss instead, quality: {loss: 4.0}"
        yield "quality.bleu", quality.bleu, message, remedy
    others = [name for name in study.variants if name != study.baseline]
    for position, name in enumerate(quality.also):
        field = f"quality.also[{position}]"
        if name not in others:
            message = "is not among the study's variants, or is its baseline"
            yield field, name, message, nearest(name, others)
        elif name in (BASELINE, BEST):
            message = "is the name that quality gives to the baseline or the recommendation"
            yield field, name, message, "rename the variant"


def _unusable(path: str) -> str | None:
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        return unreadable(error)
    if stat.S_ISDIR(mode):
        return "is a folder, not a file"
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    return None if os.access(path, os.R_OK) else "cannot be read: permission denied"


def _another_path(path: str) -> str:
    if path.startswith("~") or "$" in path:
        return "write the path in full: ~ and variables of the shell stand for nothing here"
    return f"check the path (relative ones start at {Path.cwd()})"


_JSON = re.compile(r"\.(json|ndjson)(\.(gz|xz|zst))?$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{1,3}([-_][a-z0-9]+)*", re.IGNORECASE)


def _of_corpus(corpus: AnyCorpus, file: str) -> Iterator[ConfigProblem]:
    """Files of the corpus that cannot be read, a target language without a code, by which BLEU divides
    sentences, and languages that change sides between splits."""
    if not _LANGUAGE.fullmatch(language := getattr(corpus, "target_language", "en")):
        message, remedy = "is not the code of a language", "write its ISO 639 code, such as zh"
        yield ConfigProblem(file, "corpus.target_language", language, message, remedy)
    if isinstance(corpus, DatasetsCorpus) and not Path(corpus.folder).is_dir():
        remedy = _another_path(corpus.folder)
        yield ConfigProblem(file, "corpus.folder", corpus.folder, "is not a folder", remedy)
    # Splits that have been read already may be gone.
    read = f"results/data/{corpus.name}/pairs/{{}}.arrow"
    unread = [split for split in SPLITS if not Path(read.format(split)).exists()]
    yield from missing_here(corpus, unread, [], file)
    for split in SPLITS:
        for field, path in named_files(corpus, split).items():
            if isinstance(corpus, TextsCorpus) and _JSON.search(path):
                message = "would be read as plain text, with its braces and field names"
                remedy = "end its name in .jsonl, with a JSON object on each line"
                yield ConfigProblem(file, field, path, message, remedy)
    if isinstance(corpus, TextCorpus):
        sides = _languages(corpus.train)
        for split in SPLITS[1:]:
            pair = getattr(corpus, split)
            if sides[0] != sides[1] and _languages(pair) == sides[::-1]:
                message = f"has the language of corpus.train.target ({corpus.train.target})"
                remedy = f"swap source and target of corpus.{split}, or of corpus.train"
                yield ConfigProblem(file, f"corpus.{split}.source", pair.source, message, remedy)


def missing_here(
    corpus: AnyCorpus, splits: Sequence[Split], specs: Sequence[RunSpec], file: str
) -> Iterator[ConfigProblem]:
    """The problems of a study in ``file`` if this host cannot read these splits, or has too few GPUs for
    each of these runs. If some of them fit, the others are results: ``unsupported``, with the reason."""
    for split in splits:
        for field, path in named_files(corpus, split).items():
            if problem := _unusable(path):
                yield ConfigProblem(file, field, path, problem, _another_path(path))
    machines = [spec.machine for spec in specs]
    if not machines or any(machine.device != "cuda" for machine in machines):
        return
    import torch  # imported here: most studies need no answer, and it takes seconds

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = min(map(devices_on_a_host, machines))
    if found < needed:
        message = (
            f"none of its runs can start: each needs at least {needed} CUDA "
            f"device{'s'[: needed > 1]}, and torch finds {found} on this host"
        )
        remedy = "use auto or cpu, or install torch for CUDA on a host with that many GPUs"
        yield ConfigProblem(file, "machine.device", "cuda", message, remedy)


def doubts(study: Study) -> Iterator[str]:
    """Warnings about a study that can run, but may not be meant."""
    trained: dict[str, str] = {}
    for split in SPLITS:
        seen = trained if split == "train" else dict(trained)
        for field, path in named_files(study.corpus, split).items():
            if (first := seen.setdefault(os.path.realpath(path), field)) != field:
                yield (
                    f"warning: {field} = {path!r} is also the file of {first}. If that is a mistake, "
                    "name another file."
                )
    for field, value, what in _copied_sides(study.corpus):
        yield (
            f"warning: {field} = {value!r} is also the {what} of the source, so the model learns to "
            f"copy it. If that is a mistake, name another {what}."
        )


def _copied_sides(corpus: AnyCorpus) -> Iterator[tuple[str, Any, str]]:
    """Columns, fields and downloads of target sentences that are those of their sources, too."""
    for what in ("column", "field"):
        source, target = (getattr(corpus, f"{side}_{what}", None) for side in ("source", "target"))
        if target is not None and source == target:
            yield f"corpus.target_{what}", target, what
    if isinstance(corpus, UrlCorpus):
        for split in SPLITS:
            pair = getattr(corpus, split)
            if pair.source.sha256 == pair.target.sha256:
                yield f"corpus.{split}.target.sha256", pair.target.sha256, "file"


def _languages(pair: TextPair) -> tuple[str, ...]:
    """The languages of both files by their names: de for train.de.gz."""
    names = (re.sub(r"\.(gz|xz|zst)$", "", path) for path in (pair.source, pair.target))
    return tuple(Path(name).suffix for name in names)


def _of_task(spec: RunSpec) -> Iterator[Violation]:
    corpus, model = spec.corpus.kind, spec.model.kind
    causal = isinstance(spec.model, DecoderOnly | HuggingFaceCausal)
    if isinstance(spec.task, LanguageModel):
        if corpus not in TEXT_KINDS:
            message = "holds sentence pairs, but a language model learns from texts"
            remedy = f"use corpus: {{kind: {' or '.join(TEXT_KINDS)}}}"
            yield "corpus.kind", corpus, message, remedy
        if not causal:
            message = "translates, but task.kind is language_model"
            remedy = "use model: {kind: decoder_only} or {kind: huggingface_causal}"
            yield "model.kind", model, message, remedy
        yield from _of_texts(spec, spec.task)
        return
    if corpus in TEXT_KINDS:
        message = "holds texts in one language, but a translation learns from sentence pairs"
        remedy = "use task: {kind: language_model}, or a corpus of pairs"
        yield "corpus.kind", corpus, message, remedy
    if causal:
        message = "predicts the next token of a text, but task.kind is translation"
        remedy = "use task: {kind: language_model}, or model: {kind: transformer}"
        yield "model.kind", model, message, remedy


def _of_texts(spec: RunSpec, task: LanguageModel) -> Iterator[Violation]:
    if spec.filter.max_tokens != task.context:
        message = f"is not task.context = {task.context}: long texts are cut into rows, not dropped"
        remedy = "leave it out, or change task.context"
        yield "filter.max_tokens", spec.filter.max_tokens, message, remedy
    if task.prompt + task.continuation > task.context:
        message = f"and task.prompt = {task.prompt} are more than task.context = {task.context}"
        remedy = "make one of them smaller"
        yield "task.continuation", task.continuation, message, remedy
    if isinstance(spec.batching.rows, PackedRows):
        message = "packs sentence pairs, but the texts of a language model already fill their rows"
        remedy = "use rows: {kind: padded}"
        yield "batching.rows.kind", "packed", message, remedy
    positions = getattr(spec.model, "positions", None)
    if isinstance(positions, LearnedPositions) and positions.length < task.context:
        message = f"is less than task.context = {task.context}"
        remedy = f"use at least {task.context}"
        yield "model.positions.length", positions.length, message, remedy
