"""Checks decoding and validation against the plain function.

Decoding takes one token per step and keeps a cache; the plain function takes whole prefixes, and so does
a model that only its own code can compute, sentence by sentence without padding. The check
gives the tokens instead of letting the model choose them, because after a few training steps a model
hardly prefers one token to another. The logits still show whether decoding saw the right prefix and
source. The check covers everything that a search does with its cache: sentences of several lengths, two
hypotheses per sentence that swap once, as in a beam, and a sentence that leaves the batch.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from schemas.config.model import DecoderOnly, HuggingFaceCausal, LearnedPositions
from schemas.config.parallel import Single
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import CheckedValidation, DecodedTokens
from transformer_core.certify.floors import NEAR_A_BOUND, allowed, of_loss
from transformer_core.certify.number_formats import (
    EXACT,
    SINGLE,
    Format,
    format_of,
    single_is_independent,
    whole_products,
)
from transformer_core.certify.plain_models import OwnModel, Plain, Weights
from transformer_core.data.arrays import Integers
from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import evaluation_batches
from transformer_core.data.sharding.shard_store import PairStore, first_pairs
from transformer_core.data.tokenizing.special_tokens import BOS, PAD, UNK
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.training import evaluation
from transformer_core.training.assemble import Setup
from transformer_core.training.precision import build_precision

SENTENCES, TOKENS, LONGEST = 3, 6, 5
"""Number of sentences, of decoded tokens, and of tokens in the longest source or prompt."""
SWAPPED, SHORTENED = 1, 3
"""Steps after which the hypotheses swap, and the first sentence leaves."""

Decoded = tuple[Tensor, list[Tensor], Tensor]
"""The sources [b, s], the tokens of each row so far, and the logits [b, v] of the next ones."""


@torch.no_grad()
def checked_decoding(
    spec: RunSpec, model: nn.Module, weights: Weights, plain: Plain | OwnModel, device: torch.device
) -> DecodedTokens | None:
    """How far decoding with ``weights`` is off. ``model`` decodes; it gets the weights and moves to
    ``device``. None if its texts are too short."""
    texts = isinstance(spec.model, DecoderOnly | HuggingFaceCausal)
    if texts and (_positions(spec, model) or math.inf) < LONGEST + TOKENS:
        return None
    decoding = model.to(device).eval()
    for name, tensor in canonical_state_dict(decoding).items():
        tensor.copy_(weights[name])
    precision = build_precision(spec.training.precision, device)
    if isinstance(plain, OwnModel):
        vocabulary = plain.vocabulary
    else:
        vocabulary = weights[plain.embedding].size(0)
    with precision.autocast():
        found = list((_texts if texts else _translations)(decoding, vocabulary, device))
    # An evaluation uses one process, however many trained the model.
    form = format_of(spec.model_copy(update={"parallel": Single(kind="single")}))

    def expected(numbers: Format) -> list[Tensor]:
        used = {name: numbers.stored(tensor, plain.device) for name, tensor in weights.items()}
        return _logits(plain, used, found, numbers)

    def worst(mine: list[Tensor], right: list[Tensor]) -> float:
        return max(map(_error, mine, right))

    logits = [each for _, _, each in found]
    right = expected(_right(spec, plain))
    if form is SINGLE:
        error = worst(logits, right)
        if error < NEAR_A_BOUND * allowed(0.0, 0.0, math.inf):
            return DecodedTokens(error=error, rounding=0.0)
        right = expected(EXACT)
    return DecodedTokens(error=worst(logits, right), rounding=worst(expected(form), right))


def _positions(spec: RunSpec, model: Any) -> int | None:
    """The number of positions that a language model has; None if it has any number."""
    if not isinstance(spec.model, DecoderOnly):
        return model.positions
    positions = spec.model.positions
    return positions.length if isinstance(positions, LearnedPositions) else None


def _right(spec: RunSpec, plain: Plain | OwnModel) -> Format:
    """The format to compare with: 64 bits only if 32 are not independent of the run, as on its GPU."""
    return SINGLE if plain.device.type == "cpu" and single_is_independent(spec) else EXACT


def _translations(model: Any, vocabulary: int, device: torch.device) -> Iterator[Decoded]:
    """Decodes translations like :mod:`transformer_core.models.decoding`."""
    source = _drawn(SENTENCES, LONGEST, vocabulary, device)
    for row in range(SENTENCES):
        source[row, LONGEST - row :] = PAD
    source = source.repeat_interleave(2, dim=0)
    target = _drawn(len(source), TOKENS, vocabulary, device)
    target[:, 0] = BOS
    memory, cache = model.encode(source), model.new_cache()
    for step in range(TOKENS):
        logits = model.decode(memory, source, target[:, step : step + 1], cache)[:, -1]
        yield source, list(target[:, : step + 1].clone()), logits
        rows = torch.arange(len(source), device=device)
        if step == SWAPPED:
            rows = rows.view(-1, 2).flip(1).flatten()
            cache.reorder(rows)
            target[:, : step + 1] = target[rows, : step + 1]
        elif step == SHORTENED:
            rows = rows[2:]
            cache.select(rows)
            memory, source, target = memory[rows], source[rows], target[rows]


def _texts(model: Any, vocabulary: int, device: torch.device) -> Iterator[Decoded]:
    """Continues padded prompts like :mod:`transformer_core.models.decoding`."""
    text = _drawn(SENTENCES, LONGEST + TOKENS, vocabulary, device)
    column, begins = torch.arange(text.size(1), device=device), range(SENTENCES)
    for row in begins:
        text[row, :row], text[row, row] = PAD, BOS
    real = column >= torch.tensor(begins, device=device)[:, None]
    cache, start = model.new_cache(), 0
    rows = torch.arange(SENTENCES, device=device)
    for end in range(LONGEST, LONGEST + TOKENS):
        logits = model.step(text[rows, start:end], real[rows, :end], cache)
        yield text[rows, :0], [text[row, row:end] for row in rows.tolist()], logits
        start = end
        if end == LONGEST + SHORTENED:
            cache.select(rows[1:])
            rows = rows[1:]


def _drawn(rows: int, columns: int, vocabulary: int, device: torch.device) -> Tensor:
    """Random tokens [rows, columns], the same at every call."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(UNK + 1, vocabulary, (rows, columns), generator=generator).to(device)


def _logits(
    plain: Plain | OwnModel, weights: Weights, found: list[Decoded], form: Format
) -> list[Tensor]:
    """The logits [b, v] of every step. The plain function never sees later tokens, so one pass over a
    text gives the logits after each of its prefixes."""
    steps = [
        [(tuple(row), tuple(p.tolist())) for row, p in zip(source.tolist(), prefixes, strict=True)]
        for source, prefixes, _ in found
    ]
    function = plain.during(weights, form)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
    asked = {each for step in steps for each in step}
    for length in sorted({len(text) for _, text in asked}, reverse=True):
        rows = sorted(each for each in asked - known.keys() if len(each[1]) == length)
        if not rows:
            continue
        sources, texts = (
            torch.tensor(side, dtype=torch.long).to(plain.device)
            for side in zip(*rows, strict=True)
        )
        with whole_products(plain.device):
            logits = function.logits(sources, texts).unflatten(0, texts.shape)
        for (source, text), of_row in zip(rows, logits, strict=True):
            known |= {(source, text[: i + 1]): after for i, after in enumerate(of_row)}
    return [torch.stack([known[each] for each in step]) for step in steps]


def _error(logits: Tensor, expected: Tensor) -> float:
    """The largest relative error of any row, apart from an offset on all its logits: it changes no
    choice."""
    mine, right = (x.double().cpu() - x.double().cpu().mean(-1, True) for x in (logits, expected))
    apart = (mine - right).norm(dim=-1) / right.norm(dim=-1)
    worst = float(apart.max())
    return worst if math.isfinite(worst) else 1e300


TOGETHER = 2
"""Pairs in a batch that is validated. There is a batch for each rank, and one more."""


def checked_validation(
    setup: Setup, plain: Plain | OwnModel, weights: Weights, evaluating: int
) -> CheckedValidation | None:
    """Validates ``setup``, which has these ``weights``, on a few pairs: once in given batches, which
    all ranks share, and once in its own. ``plain`` must not smooth labels. ``evaluating`` is the number
    of modules that were in evaluation mode when this rank trained. Every rank must call this; None on
    ranks where ``weights`` is empty."""
    before = {name: part.training for name, part in setup.module.named_modules()}
    _, shares = setup.strategy.validation_share
    first = first_pairs(setup.validation_store, TOGETHER * (shares + 1))
    (pairs,) = first.batches
    # Two shards show a validation that leaves one out.
    store = PairStore(first.manifest, [pairs.slice(0, TOGETHER), pairs.slice(TOGETHER)])
    few = list(evaluation_batches(store, pairs_per_batch=TOGETHER))
    own = replace(setup, validation_store=store)
    losses = evaluation.validation_loss(setup, few), evaluation.validation_loss(own)
    changed = sum(part.training != before[name] for name, part in setup.module.named_modules())
    everywhere = setup.strategy.gather([float(max(changed, evaluating))])
    if not weights:
        return None

    def compared(loss: float, batches: Iterable[tuple[Integers, Batch]]) -> CheckedValidation:
        tokens = [(one.source, one.target_input, one.target_output) for _, one in batches]
        count = sum(int((labels != PAD).sum()) for _, _, labels in tokens)

        def expected(numbers: Format) -> list[Tensor]:
            return [
                plain.loss_and_gradients(weights, part, numbers, backward=False).losses
                for part in tokens
            ]

        def mean(losses: list[Tensor]) -> float:
            return sum(float(each.sum()) for each in losses) / count

        form, right, rounding = format_of(setup.spec), expected(_right(setup.spec, plain)), 0.0
        near = NEAR_A_BOUND * allowed(0.0, 0.0, math.inf)
        if form is not SINGLE or not abs(loss / mean(right) - 1) < near:
            right = expected(EXACT) if form is SINGLE else right
            # With so few pairs, errors may cancel in the mean, so the worst batch counts.
            rounding = max(map(of_loss, expected(form), right))
        return CheckedValidation(
            loss=loss,
            expected_loss=mean(right),
            rounding=rounding,
            modes_changed=int(max(count for (count,) in everywhere)),
        )

    # A user's model may depend on padding, and so on how pairs are divided into batches.
    found = map(compared, losses, (few, evaluation_batches(store)))
    return max(found, key=lambda each: abs(each.loss / each.expected_loss - 1))
