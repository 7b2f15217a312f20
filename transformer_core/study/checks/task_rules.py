"""What a task asks of the other sections of a run spec."""

from collections.abc import Iterator
from typing import Any

from schemas.config.batching import PackedRows
from schemas.config.corpus import TEXT_KINDS
from schemas.config.decoder_only import DecoderOnly, HuggingFaceCausal, LearnedPositions
from schemas.config.run_spec import RunSpec
from schemas.config.task import LanguageModel

Violation = tuple[str, Any, str, str]
"""Field, value, what is wrong, what to do."""


def of_task(spec: RunSpec) -> Iterator[Violation]:
    """Every rule about the task of ``spec`` that it breaks."""
    texts = isinstance(spec.task, LanguageModel)
    causal = isinstance(spec.model, DecoderOnly | HuggingFaceCausal)
    if (spec.corpus.kind in TEXT_KINDS) != texts:
        yield (
            "corpus.kind",
            spec.corpus.kind,
            "holds sentence pairs, and a language model learns from texts"
            if texts
            else "holds texts in one language, and a translation learns from sentence pairs",
            f"take corpus: {{kind: {' or '.join(TEXT_KINDS)}}}"
            if texts
            else "take task: {kind: language_model}, or a corpus of pairs",
        )
    if causal != texts:
        yield (
            "model.kind",
            spec.model.kind,
            "translates, and task.kind is language_model"
            if texts
            else "gives the next token of a text, and task.kind is translation",
            "take model: {kind: decoder_only} or huggingface_causal"
            if texts
            else "take task: {kind: language_model}, or model: {kind: transformer}",
        )
    if isinstance(spec.task, LanguageModel):
        yield from _of_texts(spec, spec.task)


def _of_texts(spec: RunSpec, task: LanguageModel) -> Iterator[Violation]:
    if spec.filter.max_tokens != task.context:
        yield (
            "filter.max_tokens",
            spec.filter.max_tokens,
            f"is not task.context = {task.context}: long texts are cut into rows, not left out",
            "leave it out, or change task.context",
        )
    if task.prompt + task.continuation > task.context:
        yield (
            "task.continuation",
            task.continuation,
            f"and task.prompt = {task.prompt} are more than task.context = {task.context}",
            "make one of them smaller",
        )
    if isinstance(spec.batching.rows, PackedRows):
        yield (
            "batching.rows.kind",
            "packed",
            "packs sentence pairs; the texts of a language model stand in full rows as it is",
            "take rows: {kind: padded}",
        )
    positions = getattr(spec.model, "positions", None)
    if isinstance(positions, LearnedPositions) and positions.length < task.context:
        yield (
            "model.positions.length",
            positions.length,
            f"is less than task.context = {task.context}",
            f"take at least {task.context}",
        )
