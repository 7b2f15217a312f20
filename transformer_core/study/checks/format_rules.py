"""Rules of number formats and of compiling that span several sections of a run spec."""

from collections.abc import Iterator

from schemas.config.decoder_only import DecoderOnly, HuggingFaceCausal
from schemas.config.model import Compiling, Transformer, UnpaddedTokens
from schemas.config.parallel import Ddp, Single
from schemas.config.run_spec import RunSpec
from transformer_core.study.checks.task_rules import Violation


def of_formats(spec: RunSpec) -> Iterator[Violation]:
    """What cannot be computed, or kept, in 16 bits."""
    precision, model = spec.training.precision, spec.model
    numbers = precision.numbers
    in_bf16 = numbers.products == "bf16" and numbers.results
    if getattr(model, "residual", "") == "bf16" and not in_bf16:
        yield (
            "model.residual",
            "bf16",
            f"is a format of 16 bits, but training.precision is {precision.kind}",
            "take precision: {kind: bf16} or {kind: bf16_weights}, or residual: as_computed",
        )
    if numbers.masters:
        yield from _low_weights(spec)
    if getattr(model, "compile", "none") != "none":
        yield from _compiled(spec, model.compile)  # type: ignore[union-attr]


def _compiled(spec: RunSpec, kind: Compiling) -> Iterator[Violation]:
    reason, graphs = "", kind == "graphs"
    if not isinstance(spec.parallel, Single | Ddp):
        reason, remedy = f"was not made for {spec.parallel.kind}", "parallel: {kind: ddp}"
    elif isinstance(getattr(spec.model, "tokens", None), UnpaddedTokens):
        reason, remedy = "takes no lists of tokens", "model.tokens: {kind: padded}"
    elif getattr(spec.model, "checkpoint", "none") == "layers":
        reason, remedy = "computes no layer a second time", "model.checkpoint: none"
    elif graphs and not isinstance(spec.parallel, Single):
        reason, remedy = "is for one process", "parallel: {kind: single}, compile: layers"
    elif graphs and spec.training.accumulation.micro_batches > 1:
        reason = "adds up no gradients of several micro-batches"
        remedy = "training.accumulation.micro_batches: 1, compile: layers"
    if reason:
        yield "model.compile", kind, reason, f"take {remedy}, or model.compile: none"


def _low_weights(spec: RunSpec) -> Iterator[Violation]:
    parallel, optimizer = spec.parallel, spec.training.optimizer
    reason = ""
    remedy = "take parallel: {kind: single} or {kind: ddp}"
    if not isinstance(parallel, Single | Ddp):
        reason = f"keeps all weights in 32 bits on every rank, which {parallel.kind} does not do"
        if parallel.kind == "fsdp":
            remedy = "take parallel.bf16: true, which FSDP has for the same, or parallel: ddp"
    elif parallel.message_hook is not None:
        reason = (
            f"sends gradients of 16 bits, which the hook {parallel.message_hook.kind} does not take"
        )
        remedy = "take parallel.hook: null"
    elif not optimizer.state.takes_masters:
        reason = (
            f"needs an optimizer that updates weights of 32 bits, and {optimizer.kind} has none"
        )
        remedy = "take optimizer: {kind: adamw}"
    elif not isinstance(spec.model, Transformer | DecoderOnly):
        reason = f"was made for this project's models, not for one of kind {spec.model.kind}"
        causal = isinstance(spec.model, HuggingFaceCausal)
        kind = "decoder_only" if causal else "transformer"
        remedy = f"take model: {{kind: {kind}}}, or precision: {{kind: bf16}}"
    if reason:
        yield "training.precision.kind", spec.training.precision.kind, reason, remedy
