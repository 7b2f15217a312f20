"""Reads dropout masks while a training draws them, and applies them to the plain model.

If both drop the same elements, their losses, gradients and updates can be compared with dropout on,
as it is in training. To read a mask, the reader calls the dropping module a second time, with the same
random state and with inputs that reveal the mask: ones, or for attention equal scores and the identity
matrix as values. This works for every kernel whose draws depend only on the shape of its input.

Sentences are found in the plain model's batch by their tokens, so it does not matter how a variant
divides a batch among ranks, micro-batches, rows or lists of tokens.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from schemas.config.model import DecoderOnly, SdpaAttention, Transformer
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import Agreement, DropoutPlace
from transformer_core.certify.dropout import agreement, most_alike
from transformer_core.common.files import atomic_path
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.dropout import Dropout
from transformer_core.models.positions import source_segments, target_segments
from transformer_core.models.sublayers import Attention
from transformer_core.models.unpadded import Blocks, Sentences, sentences_of
from transformer_core.techniques.residual_norm import ResidualNorm
from transformer_core.training.assemble import Setup

Key = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Source tokens, target tokens and labels of a sentence."""
Sentence = dict[str, Tensor]
"""The masks of one sentence, by dropout place."""
Masks = dict[str, Tensor]
"""By dropout place, True where an element is kept: [b, n, d], or [b, h, n, m] for attention weights."""
COMPARED = 256
"""Number of tokens of a place whose masks are compared with each other."""
FIRST = 4096
"""Number of elements of a mask, in drawing order, that are compared between draws."""


class NotReplayed(Exception):
    """The masks of a training cannot be read; the message says why."""


class OtherSentences(Exception):
    """The ranks did not train on the sentences of the global batch."""


@dataclass(frozen=True)
class Drops:
    """Dropout with known masks."""

    p: float
    masks: Masks = field(default_factory=dict)

    def factor(self, place: str) -> Tensor | None:
        """The factor of each element of ``place``, 0 if dropped; None if the place drops nothing."""
        mask = self.masks.get(place)
        return None if mask is None else mask / (1 - self.p)

    def rows(self, start: int, stop: int) -> "Drops":
        """The masks of the rows from ``start`` to before ``stop``."""
        return Drops(self.p, {name: mask[start:stop] for name, mask in self.masks.items()})

    def backwards(self) -> "Drops":
        """The same masks with the rows in reverse order."""
        return Drops(self.p, {name: mask.flip(0) for name, mask in self.masks.items()})


def obstacle(spec: RunSpec, device: torch.device) -> str | None:
    """The reason why the masks of a training cannot be read; None if they can."""
    model = spec.model
    if not isinstance(model, Transformer | DecoderOnly):
        return "the model is not the project's own"
    if spec.parallel.kind in ("central", "data_parallel"):
        return "one process hands out the rows of all replicas"
    if isinstance(model, DecoderOnly) and model.tokens.kind == "unpadded":
        return "one list holds the texts of several rows"
    if model.compile != "none":
        return "compiled layers draw their masks inside kernels"
    if getattr(model, "norm_method", None) == ResidualNorm(kind="with_residual"):
        return "the fused kernel of residual and normalization draws its own masks"
    if device.type != "cpu" and isinstance(model.attention, SdpaAttention):
        return "the device's attention kernels draw their own masks"
    return None


def _side(place: str) -> str:
    return "source" if place.startswith(("encoder.", "source")) else "target"


@dataclass
class _Micro:
    """A micro-batch with the masks drawn in its forward pass."""

    tokens: dict[str, list[Tensor]]
    """The tokens of each sentence, by side: source or target; and its labels."""
    places: dict[str, Sentences | None]
    """The positions of these sentences in the micro-batch; None if every row is one sentence."""
    masks: dict[str, list[Tensor]] = field(default_factory=dict)
    """By place, the mask of each sentence: [n, d] or [h, n, m]."""
    draws: Sentence = field(default_factory=dict)
    """By place, the first elements of the mask in drawing order; -1 if unknown."""

    def sentences(self) -> list[tuple[Key, Sentence]]:
        """Every sentence with its masks."""
        sides = (map(_key, self.tokens[side]) for side in ("source", "target", "labels"))
        return [
            (key, {place: parts[i] for place, parts in self.masks.items()})
            for i, key in enumerate(zip(*sides, strict=True))
        ]


class Replay:
    """Reads the masks of every forward pass of a training, and collects those of all ranks on the main
    one. Every rank needs it."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup, self.spec, self.folder = setup, setup.spec, folder
        self.steps: list[Step] = []
        """All steps so far; empty on other ranks than the main one."""
        self.micros: list[_Micro] = []
        """The micro-batches since the last step."""
        self._micro: _Micro | None = None
        self._calls: dict[str, int] = {}
        model: Any = setup.model
        self.texts = isinstance(self.spec.model, DecoderOnly)
        self._lists = bool(getattr(model, "blocks", 0))
        self._packed = bool(getattr(model, "packed", False))
        for name, module in model.named_modules():
            if isinstance(module, Dropout):
                self._watch_elements(name, module)
            elif isinstance(module, Attention):
                self._watch_attention(name, module)
        setup.module.register_forward_pre_hook(self._begin)
        setup.module.register_forward_hook(self._end)

    def collect(self, step: int) -> "Step | None":
        """The masks of ``step``, which has just completed; None on ranks other than the main one.
        Raises NotReplayed, on all ranks, if a place has no mask."""
        taken, self.micros = self.micros, []
        expected = set(places_of(self.spec.model))
        lacking = sorted({place for micro in taken for place in expected - micro.masks.keys()})
        everywhere = self.setup.strategy.gather([float(len(lacking))])
        if any(count for (count,) in everywhere):
            where = lacking[0] if lacking else "a place on another rank"
            raise NotReplayed(f"{where} drew no masks where they can be read")
        mine = [(micro.sentences(), micro.draws) for micro in taken]
        several = self.setup.process.world_size > 1
        ranks = self._of_all_ranks(step, mine) if several else [mine]
        if not ranks:
            return None
        self.steps.append(Step(self.spec.model.dropout, ranks))
        return self.steps[-1]

    def _of_all_ranks(self, step: int, mine: "Micros") -> "list[Micros]":
        """The masks of every rank on the main one; nothing on the others."""
        world, rank = self.setup.process.world_size, self.setup.process.rank
        files = [self.folder / f"masks-{step}-{number}.pt" for number in range(world)]
        with atomic_path(files[rank]) as temporary:
            # Sorted by name: :func:`observed` compares each place with the one before it.
            torch.save([(masks, dict(sorted(draws.items()))) for masks, draws in mine], temporary)
        self.setup.strategy.synchronise()
        found = []
        if self.setup.process.is_main:
            found = [torch.load(file, weights_only=True) for file in files]
        self.setup.strategy.synchronise()
        files[rank].unlink()
        return found

    def _begin(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        source, target, labels = given[:3]
        tokens: dict[str, list[Tensor]] = {}
        places: dict[str, Sentences | None] = {"source": None, "target": None}
        if not self.texts:
            packed = self._packed
            places["source"] = sentences_of(source, source_segments(source) if packed else None)
            places["target"] = sentences_of(target, target_segments(target) if packed else None)
        of = {"source": places["source"], "target": places["target"], "labels": places["target"]}
        for (side, where), found in zip(of.items(), (source, target, labels), strict=True):
            if where is None:
                tokens[side] = [row[row != PAD] for row in found.cpu()]
            else:
                rows = found.flatten()[where.places].cpu()
                tokens[side] = list(rows.split(where.lengths.tolist()))
        self._micro, self._calls = _Micro(tokens, places), {}

    def _end(self, module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        if self._micro is not None:
            self.micros.append(self._micro)
        self._micro = None

    def _watch_elements(self, name: str, module: Dropout) -> None:
        """Reads the masks of every call of ``module``: by itself, after a ReLU or before a sum."""
        for method in ("forward", "of_relu", "added"):
            real = getattr(module, method)
            setattr(module, method, partial(self._elements, name, module, real))

    def _elements(
        self, name: str, module: Dropout, real: Callable[..., Tensor], *given: Tensor
    ) -> Tensor:
        """Calls ``real``, a method of ``module``, and keeps the mask of its last argument."""
        *residual, x = given
        with self._reading() as micro:
            if micro is not None:
                ones = real(*map(torch.zeros_like, residual), torch.ones_like(x))
                self._keep(micro, self._place(name), ones != 0)
        with self._pausing():
            return real(*given)

    def _watch_attention(self, name: str, module: Attention) -> None:
        attention = module.attention
        drawn: list[tuple[Tensor, Tensor]] = []
        """For each call, which weights are kept and which are visible."""

        def attend(
            real: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, *more: Any
        ) -> Tensor:
            with self._reading() as micro:
                if micro is not None:
                    read = partial(real, torch.zeros_like(q), torch.zeros_like(k))
                    m = v.size(-2)
                    identity = torch.eye(m, dtype=v.dtype, device=v.device)
                    identity = identity.expand(*v.shape[:-2], m, m)
                    kept = read(identity, mask, causal, *more) != 0
                    drawn.append((kept, read(identity, mask, causal, 0.0, *more[1:]) != 0))
            with self._pausing():
                return real(q, k, v, mask, causal, *more)

        def attention_with(
            q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool = False
        ) -> Tensor:
            micro = self._micro
            drawn.clear()
            result = attention(q, k, v, mask, causal)
            if micro is not None and self._micro is micro and drawn:
                blocks = mask if isinstance(mask, Blocks) else None
                masks = [kept for kept, _ in drawn]
                micro.masks[name] = self._of_attention(micro, name, masks, blocks)
                kept, known = (each.flatten()[:FIRST] for each in drawn[0])
                micro.draws[name] = kept.to(torch.int8).masked_fill(~known, -1).cpu()
            return result

        module.attend = partial(attend, module.attend)
        # A rank in evaluation mode shows that it drops nothing.
        module.attend_in_decoding = partial(attend, module.attend_in_decoding)
        module.attention = attention_with  # type: ignore[method-assign]

    @contextmanager
    def _reading(self) -> Iterator[_Micro | None]:
        """Yields the micro-batch if masks are to be read now, otherwise None. Restores the random state
        afterwards, so that the real call draws the same numbers."""
        micro, self._micro = self._micro, None
        if micro is None:
            yield None
            return
        gpus = [self.setup.device] if self.setup.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.no_grad():
            yield micro
        self._micro = micro

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Ignores calls inside a module whose mask has just been read."""
        micro, self._micro = self._micro, None
        yield
        self._micro = micro

    def _place(self, name: str) -> str:
        """The plain model's name for the next call of a module."""
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        if name == "dropout":
            return "embedding" if self.texts else ("source_embedding", "target_embedding")[call]
        stem = name.removesuffix(".dropout")
        return f"{stem}.residuals.{call}" if self.texts else stem

    def _keep(self, micro: _Micro, place: str, kept: Tensor) -> None:
        """Splits the mask of a place, [b, n, d] or [1, tokens, d], by sentence."""
        side = _side(place)
        where, kept = micro.places[side], kept.cpu()
        micro.draws[place] = kept.flatten()[:FIRST].to(torch.int8)
        if where is None:
            parts = [row[: len(t)] for row, t in zip(kept, micro.tokens[side], strict=True)]
        elif self._lists:
            parts = list(kept[0, : len(where.places)].split(where.lengths.tolist()))
        else:
            parts = list(kept.flatten(0, 1)[where.places.cpu()].split(where.lengths.tolist()))
        micro.masks[place] = parts

    def _of_attention(
        self, micro: _Micro, name: str, found: list[Tensor], blocks: Blocks | None
    ) -> list[Tensor]:
        """Splits masks of attention weights, [b, h, n, m] or one [h, b, n, m] for each block, by
        sentence."""
        keys = "source" if "cross" in name else _side(name)
        of_queries, of_keys = micro.tokens[_side(name)], micro.tokens[keys]
        parts: list[Tensor | None] = [None] * len(of_queries)
        if blocks is not None:
            starts = blocks.sentences[0].starts.tolist()
            number = {start: i for i, start in enumerate(starts)}
            for grid, masks in zip(blocks._grids.queries, found, strict=True):
                for row, first in enumerate(grid[:, 0].tolist()):
                    i = number[first]
                    parts[i] = masks[:, row, : len(of_queries[i]), : len(of_keys[i])].cpu()
        else:
            (masks,) = found
            masks = masks.cpu()
            queries = self._corners(micro, _side(name))
            for i, ((row, at), (_, to)) in enumerate(
                zip(queries, self._corners(micro, keys), strict=True)
            ):
                n, m = len(of_queries[i]), len(of_keys[i])
                parts[i] = masks[row, :, at : at + n, to : to + m]
        return [part for part in parts if part is not None]

    @staticmethod
    def _corners(micro: _Micro, side: str) -> list[tuple[int, int]]:
        """The row and the first column of every sentence."""
        where = micro.places[side]
        if where is None:
            return [(row, 0) for row in range(len(micro.tokens[side]))]
        firsts = where.places[where.starts[:-1].long()].tolist()
        width = where.shape[1]
        return [divmod(first, width) for first in firsts]


def places_of(spec: Transformer | DecoderOnly | Any) -> Iterator[str]:
    """The dropout places of a model, by the plain model's names."""
    if isinstance(spec, DecoderOnly):
        yield "embedding"
        for layer in range(spec.layers):
            yield f"layers.{layer}.self_attention"
            yield from (f"layers.{layer}.residuals.{number}" for number in range(2))
        return
    yield from ("source_embedding", "target_embedding")
    for stack, layers, parts in (
        ("encoder", spec.encoder_layers, ("self_attention", "feed_forward")),
        ("decoder", spec.decoder_layers, ("self_attention", "cross_attention", "feed_forward")),
    ):
        for layer in range(layers):
            yield from (f"{stack}.{layer}.{part}" for part in parts)
            yield from (f"{stack}.{layer}.residuals.{number}" for number in range(len(parts)))


def _key(tokens: Tensor) -> tuple[int, ...]:
    return tuple(tokens[tokens != PAD].tolist())


Micros = list[tuple[list[tuple[Key, Sentence]], Sentence]]
"""For each micro-batch, its sentences and the first elements of each mask in drawing order."""


@dataclass
class Step:
    """All masks of a step, by rank and micro-batch."""

    p: float
    ranks: list[Micros]

    def imposed(self, source: Tensor, target: Tensor, labels: Tensor) -> Drops:
        """The masks for source [b, s], target input [b, t] and labels [b, t] of the whole batch. Raises
        OtherSentences if the ranks trained on other sentences."""
        waiting: dict[tuple[tuple[int, ...], ...], list[tuple[tuple[int, ...], Sentence]]] = {}
        for micros in self.ranks:
            for sentences, _ in micros:
                for (*tokens, own), masks in sentences:
                    waiting.setdefault(tuple(tokens), []).append((own, masks))
        rows = []
        for row in zip(source, target, labels, strict=True):
            *tokens, own = map(_key, row)
            alike = waiting.get(tuple(tokens))
            if not alike:
                raise OtherSentences
            # Texts may be equal except for their last label.
            with_labels = [i for i, (other, _) in enumerate(alike) if other == own]
            rows.append(alike.pop(with_labels[-1] if with_labels else -1)[1])
        # Ranks and micro-batches without a sentence compute one without labels.
        if any(own for alike in waiting.values() for own, _ in alike):
            raise OtherSentences
        lengths = {"source": source.size(1), "target": target.size(1)}
        return Drops(self.p, {place: _padded(place, rows, lengths) for place in rows[0]})


def _padded(place: str, rows: Sequence[Sentence], lengths: Mapping[str, int]) -> Tensor:
    first, n = rows[0][place], lengths[_side(place)]
    m = lengths["source" if "cross" in place else _side(place)]
    shape = (n, first.size(1)) if first.dim() == 2 else (first.size(0), n, m)
    whole = torch.ones(len(rows), *shape, dtype=torch.bool)
    for row, masks in zip(whole, rows, strict=True):
        row[tuple(map(slice, masks[place].shape))] = masks[place]
    return whole


def observed(steps: Sequence[Step], texts: bool) -> list[DropoutPlace]:
    """For every place, how many elements were dropped, and how far masks agree that must be
    independent. ``texts``: whether the model is a language model."""
    found: list[DropoutPlace] = []
    before: dict[int, Tensor] = {}
    for place, first in steps[0].ranks[0][0][1].items():
        # Whether its queries see only preceding tokens.
        causal = "self_attention" in place and (texts or place.startswith("decoder."))
        of_ranks = [
            [
                _visible(masks[place], key[1], causal)
                for micros in of_steps
                for sentences, _ in micros
                for key, masks in sentences
            ]
            for of_steps in zip(*(step.ranks for step in steps), strict=True)
        ]
        mine = of_ranks[0]
        dropped, of = _worst_share(of_ranks, steps[0].p)
        some = torch.cat(mine)[:COMPARED]
        # The rows that every two consecutive sentences have in common.
        near = [(a[: len(b)], b[: len(a)]) for a, b in pairwise(mine)] or [(some[:0], some[:0])]
        draws = [
            [drawn[place] for micros in of_steps for _, drawn in micros]
            for of_steps in zip(*(step.ranks for step in steps), strict=True)
        ]
        again = (agreement(first, other) for first, *others in draws for other in others)
        apart = (agreement(*pair) for pair in combinations((own[0] for own in draws), 2))
        width = some.size(1)
        neighbours = [agreement(some[1:], some[:-1])]
        if steps[0].ranks[0][0][0][0][1][place].dim() == 3:
            neighbours.append(_between_queries(steps[0], place, causal))
        found.append(
            DropoutPlace(
                place=place,
                dropped=dropped,
                of=of,
                factor=None,
                dropped_in_evaluation=None,
                steps=most_alike(again) or Agreement(same=0, of=0),
                rows=agreement(*(torch.cat(side) for side in zip(*near, strict=True))),
                layers=agreement(first, before[width]) if width in before else None,
                ranks=most_alike(apart),
                tokens=most_alike(neighbours),
                elements=_between_elements(some),
            )
        )
        before[width] = first
    return found


def _worst_share(of_ranks: Iterable[Sequence[Tensor]], p: float) -> tuple[int, int]:
    """Dropped elements, and all, of the rank whose share is the most unlikely."""
    counts = []
    for masks in of_ranks:
        of = sum(mask.numel() for mask in masks)
        counts.append((of - sum(int(mask.count_nonzero()) for mask in masks), of))
    return max(counts, key=lambda each: abs(each[0] - p * each[1]) / math.sqrt(max(1, each[1])))


def _visible(mask: Tensor, target: Sequence[int], causal: bool) -> Tensor:
    """A mask [n, d] as it is; [h, n, m] of attention weights as [weights of visible keys, h]."""
    if mask.dim() == 2:
        return mask
    return mask[:, _seen(target)].T if causal else mask.flatten(1).T


def _seen(target: Sequence[int]) -> Tensor:
    """[n, n] True where a query sees a key: one of the same text of ``target`` and not a later one."""
    text = (torch.tensor(target) == BOS).cumsum(0)
    return (text[:, None] == text[None, :]).tril()


def _between_queries(step: Step, place: str, causal: bool) -> Agreement:
    """Agreement between the attention weights of neighbouring queries, for the same key."""
    same = of = 0
    for sentences, _ in step.ranks[0]:
        for key, masks in sentences:
            mask = masks[place]
            agree = mask[:, 1:] == mask[:, :-1]
            if causal:
                seen = _seen(key[1])
                agree = agree[:, seen[1:] & seen[:-1]]
            same += int(agree.count_nonzero())
            of += agree.numel()
    return Agreement(same=same, of=of)


def _between_elements(mask: Tensor) -> Agreement | None:
    """Agreement between elements, or heads, at the distance at which they agree most."""
    # All distances at once: sums of products of signs, which are exact in 32 bits.
    tokens, n = mask.shape
    signs = 2.0 * mask - 1.0
    surpluses = enumerate(_by_distance(signs.T @ signs), start=1)
    found = [(s / (n - lag), s, n - lag) for lag, s in surpluses if n - lag >= (n - 1) / 8]
    if not found:
        return None
    _, surplus, pairs = max(found)
    return Agreement(same=(tokens * pairs + surplus) // 2, of=tokens * pairs)


def _by_distance(counts: Tensor) -> list[int]:
    """The sum of each diagonal above the main one of ``counts`` [n, n]."""
    n = len(counts)
    padded = torch.nn.functional.pad(counts, (0, n))
    shifted = padded.as_strided((n, n), (2 * n + 1, 1))  # row i from its column i
    return [int(total) for total in shifted.sum(0)[1:].tolist()]
