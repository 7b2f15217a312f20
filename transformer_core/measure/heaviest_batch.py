"""The batch of a training that needs the most memory."""

from collections.abc import Sequence
from contextlib import closing
from itertools import islice, takewhile

import torch

from schemas.config.data import TokenBudget
from schemas.config.model import DecoderOnly, HuggingFaceCausal
from schemas.config.run_spec import AnyTrained, LanguageModel, RunSpec
from schemas.results import BatchShape
from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.sharding.shard_store import PairStore
from transformer_core.data.tokenizing.special_tokens import EOS

SEARCHED = 200  # number of first global batches that are examined: shapes soon repeat


def heaviest_batch(
    spec: RunSpec, store: PairStore, vocabulary: int, shares: int
) -> tuple[int, GlobalBatch]:
    """The global batch with the micro-batch that needs the most memory, among the training's first
    ones: its number in the first epoch, and its contents for the first of ``shares`` ranks, on the
    CPU. The same on every rank.
    """
    feed = Feed(
        store,
        spec.batching,
        seed=spec.training.seed,
        rank=0,
        world_size=shares,
        micro_batches=spec.training.accumulation.micro_batches,
        device=torch.device("cpu"),
        prefetch=0,
    )

    def heaviest(batch: GlobalBatch) -> float:
        return max(weight(spec.model, vocabulary, shape_of(m)) for m in batch.micro_batches)

    with closing(feed.batches()) as batches:
        first = takewhile(lambda batch: batch.epoch == 0, batches)
        seen = islice(first, min(SEARCHED, spec.training.steps))
        best = max(seen, key=heaviest)
    return best.index, best


def shape_of(batch: Batch) -> BatchShape:
    rows, source_tokens = batch.source.shape
    return BatchShape(
        rows=rows, source_tokens=source_tokens, target_tokens=batch.target_output.size(1)
    )


def largest_shape(batch: GlobalBatch) -> BatchShape:
    """The shape of the micro-batch with the most tokens."""
    shapes = [shape_of(micro) for micro in batch.micro_batches]
    return max(shapes, key=lambda shape: shape.rows * (shape.source_tokens + shape.target_tokens))


def expected_shape(spec: RunSpec, parts: int) -> BatchShape:
    """The largest micro-batch that the settings allow: rows of the longest sentences."""
    batching = spec.batching
    if isinstance(batching, TokenBudget):
        pairs = batching.scaled_tokens // spec.longest
    else:
        pairs = batching.scaled_pairs
    return longest_rows(spec, -(-pairs // parts))


def longest_rows(spec: RunSpec, rows: int) -> BatchShape:
    """``rows`` rows of the longest sentences, or of texts; at least one."""
    target = spec.longest
    source = 0 if isinstance(spec.task, LanguageModel) else target // 2
    return BatchShape(rows=max(1, rows), source_tokens=source, target_tokens=target - source)


def weight(model: AnyTrained, vocabulary: int, shape: BatchShape) -> float:
    """Roughly how many numbers a micro-batch keeps for its backward pass, for comparing batches.

    In an encoder layer a token keeps some 14 vectors of the residual stream's width and two of the
    feed-forward's, in a decoder layer half as many again. Attention weights grow with the square of
    the length, and the last layer keeps logits.
    """
    b, s, t = shape.rows, shape.source_tokens, shape.target_tokens
    token = 14 * model.d_model + 2 * model.d_ff
    if isinstance(model, DecoderOnly | HuggingFaceCausal):
        return b * t * (model.layers * (token + model.heads * t) + vocabulary)
    encoder = model.encoder_layers * s * (token + model.heads * s)
    decoder = model.decoder_layers * t * (1.5 * token + model.heads * (s + t))
    return b * (encoder + decoder + t * vocabulary)


def blank_batch(shapes: Sequence[BatchShape], device: torch.device) -> GlobalBatch:
    """A global batch of micro-batches of these shapes, filled with one token."""
    return global_batch([_blank(shape, device) for shape in shapes])


def global_batch(micro_batches: list[Batch]) -> GlobalBatch:
    """The first global batch of a training, made of these micro-batches without padding."""
    shapes = [shape_of(micro) for micro in micro_batches]
    padded = sum(shape.rows * (shape.source_tokens + shape.target_tokens) for shape in shapes)
    return GlobalBatch(
        epoch=0,
        index=0,
        micro_batches=micro_batches,
        pairs=sum(shape.rows for shape in shapes),
        tokens=padded,
        target_tokens=sum(shape.rows * shape.target_tokens for shape in shapes),
        padded_tokens=padded,
    )


def _blank(shape: BatchShape, device: torch.device) -> Batch:
    source, target = (
        torch.full((shape.rows, width), EOS, device=device)
        for width in (shape.source_tokens, shape.target_tokens)
    )
    return Batch(source, target, target.clone(), shape.rows)
