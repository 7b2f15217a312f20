"""Dropout of known inputs: how much is dropped, where, and how the rest is scaled.

Masks inside fused kernels cannot be read, and code that reads masks would have to know every
implementation. Instead the model gets weights with which its logits reveal the masks, whatever kernel
drew them. All weights are 0 except those of one sub-layer, normalizations and embeddings.

That sub-layer adds a_j (1 + r) to each element j of a token. Here a_j is a large constant with sign 1 or
-1, and r is what dropout inside the sub-layer makes of a 1: of an attention weight, or of a unit of the
feed-forward layer. Dropout then multiplies the sub-layer's output by m. So an element of the residual
stream is a_j m (1 + r): 0 if the output was dropped, one level if the inner element was dropped, and a
higher level if both were kept. The ratio of the two levels is 1 + the inner scale factor. Embeddings are
read in the same way, relative to the output of a sub-layer.

The scale factor of outputs is read relative to the embedding: every sub-layer adds to elements of its
own, and the embedding to all others.

The encoder is read through cross-attention: all target tokens attend to a source of one token, each with
masks of its own. An element that none of them sees was dropped in the encoder.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations, count
from typing import Any, ClassVar

import torch
from scipy.special import bdtr
from torch import Tensor

from schemas.config.data import FixedSize
from schemas.config.model import (
    DecoderOnly,
    ImportedModel,
    SinusoidalPositions,
    TorchTransformer,
    Transformer,
)
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import Agreement, DropoutMoments, DropoutPlace
from transformer_core.certify.dropout_bounds import SLOPE
from transformer_core.certify.floors import NEAR_A_BOUND
from transformer_core.certify.number_formats import SINGLE, format_of
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.objective import objective
from transformer_core.parallel.strategy import gather_texts
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step
from transformer_core.training.optimizer import masters_of

Mask = tuple[Tensor, float | None]
"""[rows, ...], 1 where kept, 0 where dropped, -1 where not observed; and the scale factor of kept
elements, None if not observed."""
LOUD = 1000.0
"""Size of a sub-layer's contribution, relative to embeddings of size 1."""
DECODER = (192, 2)
"""Sentences in a batch, and target tokens in a sentence. Only the first target token shows the
weights of the decoder's self-attention, because it has a single key."""
ENCODED = 32
"""Sentences in a batch for reading an encoder, each through many target tokens."""
EVALUATED = 4
"""Sentences in the evaluation pass, where a single dropped element is a fault."""
READ_OUT = 4
"""Number of logits that the residual stream is read from, as a multiple of the model's width. More
logits add no information."""
BITS = 2_000
"""Number of elements of a mask that are compared between ranks."""
WORD = 4
"""The token that all targets consist of, after the begin token."""
TOKENS = tuple(range(WORD + 1))
"""Input tokens: padding, begin, end, unknown and WORD. All others serve as outputs."""


@dataclass(frozen=True)
class Probe:
    """Weights with which the logits reveal the masks of some dropout places."""

    names: tuple[str, ...]
    """The inner place and that of the output; or all outputs that add to the residual stream."""
    weights: dict[str, Tensor]
    encoder: bool
    """Whether it is read through cross-attention."""
    shape: tuple[int, int]
    """Sentences of the batch, and target tokens of each."""
    kind: str
    """Kind of the inner place: "heads", "elements", or "embedding" next to an output; "beside" if all
    places are outputs next to the embedding."""


class KnownDropout:
    """Reads the masks of a training's model. Every rank must create a reader and call it."""

    embeddings: tuple[str, ...] = ("source_embedding.weight", "target_embedding.weight")
    """Names of the embedding matrices."""
    read_in: ClassVar[dict[str, list[int]]] = {"source": [EOS], "target": [BOS, WORD]}
    """Tokens that the model reads on each side."""

    def __init__(self, setup: Setup, vocabulary: int) -> None:
        self.setup = setup
        self.tensors = CanonicalTensors(setup, vocabulary)
        self.model: Any = setup.model
        self.spec: Any = setup.spec.model
        self.d = self.spec.d_model
        element = torch.arange(self.d)
        self.sign = 1.0 - 2.0 * (element % 2)
        self.anchor = element % 4 >= 2
        self.head = element[~self.anchor] // (self.d // self.spec.heads)
        # In units of LOUD. Their level sets anchors apart.
        self.level = torch.where(self.anchor, 3.0, 1.0)
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(vocabulary, self.d, generator=generator) / self.d**0.5
        self.words = slice(len(TOKENS), len(TOKENS) + READ_OUT * self.d)
        # The factor by which the model multiplies embeddings.
        self.scale = self.d**0.5
        # A target token sees an element of the memory if its own two masks keep it.
        self.visible = (1 - self.spec.dropout) ** 2
        self.inverse = torch.linalg.pinv(self.embedding[self.words].double()).T.float()

    def read(self) -> list[DropoutPlace]:
        """Reads every place once on each rank, from two training passes and one evaluation pass."""
        found: list[DropoutPlace] = []
        before: dict[str, Tensor] = {}
        for probe in self._probes():
            self.tensors.write(probe.weights)
            # All places start from one seed, so masks that depend on nothing but the seed are equal
            # at different places.
            _seed(self.setup)
            rows = probe.shape[0]
            first, second = self._pass(probe, rows), self._pass(probe, rows)
            self.model.eval()
            evaluated = self._pass(probe, EVALUATED)
            self.model.train()
            for number, name in enumerate(probe.names):
                kept, again, still = (of[number][0] for of in (first, second, evaluated))
                kind = f"{number} {tuple(kept.shape)}"
                found.append(
                    DropoutPlace(
                        place=name,
                        dropped=int((kept == 0).sum() + (again == 0).sum()),
                        of=int((kept >= 0).sum() + (again >= 0).sum()),
                        factor=first[number][1],
                        dropped_in_evaluation=int((still == 0).sum()),
                        steps=agreement(kept, again),
                        rows=agreement(kept[: rows // 2], kept[rows // 2 :]),
                        layers=agreement(kept, before[kind]) if kind in before else None,
                        ranks=self._ranks(kept),
                        tokens=between(kept, 1),
                        elements=between(kept, 2),
                    )
                )
                before[kind] = kept
        return self._of_all_ranks(found)

    def _of_all_ranks(self, mine: list[DropoutPlace]) -> list[DropoutPlace]:
        """The places of every rank: a single one may drop another share, or nothing."""
        if self.setup.process.world_size == 1:
            return mine
        text = json.dumps([place.model_dump() for place in mine])
        return [
            DropoutPlace.model_validate(place | {"place": f"rank {rank}: {place['place']}"})
            for rank, theirs in enumerate(gather_texts(text, self.setup.device))
            for place in json.loads(theirs)
        ]

    def _ranks(self, kept: Tensor) -> Agreement | None:
        if self.setup.process.world_size == 1:
            return None
        everyone = self.setup.strategy.gather(kept.flatten()[:BITS].tolist())
        pairs = combinations(map(torch.tensor, everyone), 2)
        return most_alike(agreement(*pair) for pair in pairs)

    def _probes(self) -> Iterator[Probe]:
        for layer in range(self.spec.encoder_layers):
            at = f"encoder.{layer}."
            yield self._attention(at, "self_attention", "project.value", 0)
            yield self._feed_forward(at, 1)
        for layer in range(self.spec.decoder_layers):
            at = f"decoder.{layer}."
            yield self._attention(at, "self_attention", "project.value", 0)
            yield self._attention(at, "cross_attention", "project_memory.value", 1)
            yield self._feed_forward(at, 2)
        for side, first in (("source", "encoder.0."), ("target", "decoder.0.")):
            weights = self._beside_embedding(side, f"{first}self_attention.output.bias")
            names = (f"{side} embedding", f"{first}residuals.0 beside it")
            yield self._probe(names, weights, "embedding")
        if self.spec.norm == "pre":  # otherwise every sub-layer scales the stream to the same size
            of_encoder = ("self_attention.output", "feed_forward.outer")
            of_decoder = ("cross_attention.output", *of_encoder)
            sides = (("source", "encoder", of_encoder), ("target", "decoder", of_decoder))
            for side, stack, parts in sides:
                layers = getattr(self.spec, f"{stack}_layers")
                yield self._beside(side, [f"{stack}.{i}.{p}" for i in range(layers) for p in parts])

    def _beside(self, side: str, outputs: Sequence[str]) -> Probe:
        """Probes all ``outputs`` of a side, each on elements of its own, next to the embedding."""
        weights = self._blank(side, LOUD * self.sign * self.anchor)
        outputs = outputs[: int((~self.anchor).sum())]
        for number, name in enumerate(outputs):
            mine = torch.zeros(self.d)
            mine[(~self.anchor).nonzero().flatten()[number :: len(outputs)]] = LOUD
            weights[f"{name}.bias"] = mine * self.sign
        names = tuple(f"{name} beside the embedding" for name in outputs)
        return self._probe(names, weights, "beside")

    def _beside_embedding(self, side: str, bias: str) -> dict[str, Tensor]:
        """Weights with one output next to the embedding, which has half its size."""
        weights = self._blank(side, LOUD * self.sign * ~self.anchor)
        weights[bias] = LOUD * self.sign * torch.where(self.anchor, 3.0, 2.0)
        return weights

    def _attention(self, at: str, name: str, value: str, residual: int) -> Probe:
        weights = self._blank()
        weights[f"{at}{name}.{value}.bias"].fill_(1.0)
        self._signal(weights, f"{at}{name}.output", self.d)
        names = (f"{at}{name} weights", f"{at}residuals.{residual}")
        return self._probe(names, weights, "heads")

    def _feed_forward(self, at: str, residual: int) -> Probe:
        weights = self._blank()
        weights[f"{at}feed_forward.inner.bias"] = torch.ones(self.spec.d_ff)
        self._signal(weights, f"{at}feed_forward.outer", self.spec.d_ff)
        names = (f"{at}feed_forward", f"{at}residuals.{residual}")
        return self._probe(names, weights, "elements")

    def _probe(self, names: tuple[str, ...], weights: dict[str, Tensor], kind: str) -> Probe:
        encoder = names[-1].startswith("encoder")
        if encoder:
            # The memory reaches the logits through the cross-attention of the first layer.
            cross = "decoder.0.cross_attention."
            weights[f"{cross}project_memory.value.weight"] = torch.eye(self.d)
            weights[f"{cross}output.weight"] = LOUD * torch.eye(self.d)
        shape = (ENCODED, enough_tokens(self.visible)) if encoder else DECODER
        return Probe(names, weights, encoder, shape, kind)

    def _signal(self, weights: dict[str, Tensor], name: str, width: int) -> None:
        matrix = torch.zeros(self.d, width)
        element = torch.arange(self.d)
        matrix[element, element % width] = LOUD * self.sign * ~self.anchor
        weights[f"{name}.weight"] = matrix
        weights[f"{name}.bias"] = LOUD * self.sign * self.level

    def _blank(self, side: str | None = None, stream: Tensor | None = None) -> dict[str, Tensor]:
        """Weights of a model that only embeds tokens; the residual stream of ``side`` starts with the
        elements of ``stream`` [d]."""
        weights = {}
        for name, tensor in self.tensors.canonical.items():
            is_norm = "norm" in name and name.endswith("weight")
            weights[name] = torch.full_like(tensor, float(is_norm))
            if name in (*self.embeddings, "output.weight"):
                weights[name] = self.embedding.clone()
        for name in self.embeddings:
            if name in weights:
                weights[name][list(TOKENS)] = 0.0
                if side is not None and stream is not None:
                    weights[name][self.read_in[side]] = stream / self.scale
        return weights

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """source [b, s], target [b, t] -> logits [b, t, v]."""
        return self.model(source, target)

    @torch.no_grad()
    def _pass(self, probe: Probe, rows: int) -> tuple[Mask, ...]:
        """The masks of one forward pass over this many ``rows``."""
        device = self.setup.device
        source = torch.full((rows, 1), EOS, device=device)
        target = torch.full((rows, probe.shape[1]), WORD, device=device)
        target[:, 0] = BOS
        with self.setup.precision.autocast():
            logits = self.logits(source, target)
        logits = logits.view(*target.shape, -1)[..., self.words].float().cpu()
        stream = logits @ self.inverse
        # Anchors of both signs show how normalization has shifted and scaled the stream.
        plus, minus = self.anchor & (self.sign > 0), self.anchor & (self.sign < 0)
        high, low = _highest(stream[..., plus]), -_highest(-stream[..., minus])
        middle, half = (high + low) / 2, (high - low) / 2
        # With one level for all, the mean that normalization subtracts is small next to it.
        top = 1.0 if probe.kind == "beside" else 3.0
        level = self._where_anchored(top * self.sign * (stream - middle) / half, top)
        if probe.encoder:
            level = self._through_cross_attention(level)
        return read_masks(probe.kind, probe.names, level[..., ~self.anchor], self.head)

    def _where_anchored(self, level: Tensor, top: float) -> Tensor:
        """``level``, but NaN for tokens that lost all anchors of one sign, which shows in impossible
        levels. ``top`` is the level of anchors; above 1, others add up to twice that of an output."""
        highest = 1.25 * max(top, (top > 1) + 1 / (1 - self.spec.dropout))
        signal = level[..., ~self.anchor]
        possible = (signal > -1) & (signal < highest)
        return level.where(possible.all(-1, keepdim=True), math.nan)

    def _through_cross_attention(self, level: Tensor) -> Tensor:
        """Levels [rows, n, d] at n target tokens -> levels [rows, 1, d] of the memory that they see.

        A level is 0 if hardly any token sees the element. An element that a token does not see is 0
        there, except for the mean that normalization subtracts from the memory.
        """
        seen = level > 0.6
        looking = (~level.isnan()).sum(1, keepdim=True)
        typical = level.masked_fill(~seen, math.nan).nanmedian(1, keepdim=True).values
        typical = typical.where(seen.sum(1, keepdim=True) > self.visible * looking / 3, 0.0)
        return typical.where(looking > 0, math.nan)


def _highest(anchors: Tensor) -> Tensor:
    """anchors [..., n] -> [..., 1] the mean of those that were kept. The highest one alone would be the
    one with the largest rounding error."""
    kept = anchors > 0.75 * anchors.amax(-1, keepdim=True)
    return (anchors * kept).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)


def enough_tokens(visible: float) -> int:
    """The number of target tokens, a multiple of 16, that read an element of the memory reliably: if
    each sees it with probability ``visible``, at least a third of the expected number see it with
    probability 0.999."""
    return next(n for n in count(16, 16) if bdtr(visible * n // 3, n, visible) < 1e-3)


def readable_vocabulary(spec: RunSpec, vocabulary: int) -> int | None:
    """The vocabulary size for reading a model's dropout: its own, or the number of tokens that are read
    if that is less. None if dropout cannot be read: the model comes from another library, its width is
    no multiple of 4, or the vocabulary is too small to reveal a residual stream of that width."""
    model = spec.model
    readable = isinstance(model, Transformer | TorchTransformer | DecoderOnly)
    if not readable or vocabulary < model.d_model + 2 * len(TOKENS) or model.d_model % 4:
        return None
    # Matrix products are faster with multiples of eight.
    return min(vocabulary, 8 * math.ceil((len(TOKENS) + READ_OUT * model.d_model) / 8))


def readable(spec: RunSpec) -> RunSpec:
    """``spec`` with everything that reading needs: a language model gets biases, so that its sub-layers
    can add known numbers. Nothing else changes."""
    if isinstance(spec.model, DecoderOnly):
        return spec.model_copy(update={"model": spec.model.model_copy(update={"bias": True})})
    return spec


def known_dropout(setup: Setup, vocabulary: int) -> list[DropoutPlace]:
    """Reads every dropout place in the model of ``setup`` and overwrites its weights. The spec must come
    from :func:`readable`, and the vocabulary have :func:`readable_vocabulary` tokens. Every rank must
    call this."""
    setup.module.train()
    texts = isinstance(setup.spec.model, DecoderOnly)
    return (KnownTextDropout if texts else KnownDropout)(setup, vocabulary).read()


class KnownTextDropout(KnownDropout):
    """Reads the masks of a language model."""

    embeddings = ("embedding.weight",)
    read_in: ClassVar[dict[str, list[int]]] = {"text": [BOS, WORD]}

    def __init__(self, setup: Setup, vocabulary: int) -> None:
        super().__init__(setup, vocabulary)
        if not isinstance(self.spec.positions, SinusoidalPositions):
            self.scale = 1.0
        self.objective: Any = objective(setup.spec.task, self.model)

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """target [b, t] -> logits [b, t, v]; ``source`` is not used."""
        return self.objective.logits(source[:, :0], target)

    def _probes(self) -> Iterator[Probe]:
        layers = [f"layers.{number}." for number in range(self.spec.layers)]
        for at in layers:
            yield self._attention(at, "self_attention", "project.value", 0)
        weights = self._beside_embedding("text", f"{layers[0]}self_attention.output.bias")
        names = ("text embedding", f"{layers[0]}residuals.0 beside it")
        yield self._probe(names, weights, "embedding")
        parts = ("self_attention.output", "feed_forward.outer")
        yield self._beside("text", [f"{at}{part}" for at in layers for part in parts])


def read_masks(kind: str, names: Sequence[str], signal: Tensor, head: Tensor) -> tuple[Mask, ...]:
    """The masks of the places ``names`` of a :class:`Probe` of this ``kind``.

    ``signal`` [rows, n, elements] has the levels of all elements except anchors, NaN for tokens that do
    not reveal them; ``head`` [elements] is the attention head of each element.
    """
    if kind == "beside":
        return tuple(_of_output(signal[..., number :: len(names)]) for number in range(len(names)))
    unseen = signal.isnan()
    if kind == "embedding":
        # The embedding adds 1, the output 2.
        outer = signal > 1.5
        inner = torch.where(outer, signal - 2, signal) > 0.5
        beside = signal[outer & inner]
        factor = float(beside.mean() - 2) if beside.numel() else None
        return (_mask(inner, unseen), factor), (_mask(outer, unseen), None)
    outer = _mask(signal > 0.5, unseen)
    if kind == "heads":
        # All elements of a head share an attention weight. The first target token has a single key.
        signal = signal[:, :1] if "self_attention" in names[0] else signal
        each = [signal[..., head == number].amax(-1) for number in head.unique()]
        signal = torch.stack(each, -1)
    inner = torch.where(signal > 1.5, 1.0, torch.where(signal > 0.5, 0.0, -1.0))
    kept = signal[inner == 1]
    return (inner, float(kept.mean() - 1) if kept.numel() else None), (outer, None)


def _mask(kept: Tensor, unseen: Tensor) -> Tensor:
    """The mask of ``kept`` elements, with ``unseen`` ones marked as not observed."""
    return kept.float().masked_fill(unseen, -1.0)


def _of_output(signal: Tensor) -> Mask:
    """The mask that levels of 0 or 1 show, and the scale factor of kept elements."""
    kept = signal > 0.5
    return _mask(kept, signal.isnan()), float(signal[kept].mean()) if kept.any() else None


def between(mask: Tensor, dimension: int) -> Agreement | None:
    """The agreement of neighbours along a dimension of a mask [rows, tokens, elements or heads]; None
    if there are no neighbours."""
    pairs = mask.size(dimension) // 2
    if not pairs:
        return None
    both = mask.narrow(dimension, 0, 2 * pairs).unflatten(dimension, (pairs, 2))
    return agreement(*both.unbind(dimension + 1))


def agreement(one: Tensor, other: Tensor) -> Agreement:
    """Counts the elements in which two masks agree, among those observed in both. Ignores rows that
    only the longer mask has."""
    count = min(len(one), len(other))
    one, other = one[:count], other[:count]
    seen = (one >= 0) & (other >= 0)
    return Agreement(same=int(((one == other) & seen).sum()), of=int(seen.sum()))


def most_alike(found: Iterable[Agreement]) -> Agreement | None:
    """The agreement of the masks that agree most; None without any."""
    return max(found, key=lambda each: each.same / each.of if each.of else 0.0, default=None)


PAIRS = 2
"""Sentence pairs in a copy; with so few, masks change the loss a lot."""
COPIES = 4
"""Copies of the pairs in a batch, over all ranks and micro-batches together."""
DRAWS = 4
"""Number of times that masks are drawn for the batch."""
CHANGE, CHANGE_CURVED, CHANGE_ROUNDED = 0.02, 0.005, 0.05
"""Change of the loss, in nats, over which its slope is measured: large relative to rounding, but so
small that curvature hardly matters. The second number is for losses that are more curved than usual, as
those of a few tokens, the third one for losses with fewer bits."""


def dropout_moments(setup: Setup) -> DropoutMoments | None:
    """Loss and gradient of the training ``setup`` at its weights, with dropout on. Changes the weights,
    so they must be replaced before any other use. Every rank must call this. None if the copies cannot
    be divided among the ranks."""
    _, shares = setup.strategy.share
    if COPIES % shares:
        return None
    batch = _copies(setup, COPIES // shares)
    losses: list[float] = []  # of this rank's copies, in order

    def keep(module: Any, given: Any, loss: Tensor) -> None:
        # On most ranks there are several numbers if one rank computes the loss of all.
        losses.append(float(loss.detach()) if loss.numel() == 1 else math.nan)

    setup.module.train()
    hook = setup.module.register_forward_hook(keep)
    _seed(setup)
    norms = [_draw(setup, batch)[1]]
    direction = [None if p.grad is None else p.grad.clone() for p in setup.module.parameters()]
    norms += [_draw(setup, batch)[1] for _ in range(DRAWS - 1)]
    hook.remove()
    everyone = setup.strategy.gather(losses)
    tokens = batch.target_tokens / COPIES
    compresses = setup.strategy.held_back() is not None
    return DropoutMoments(
        losses=[x / tokens for of_rank in everyone[:shares] for x in of_rank],
        grad_norms=[] if compresses else [n for n in norms if math.isfinite(n)],
        slope=_slope(setup, batch, norms[0], direction),
        optional=isinstance(setup.spec.model, ImportedModel),
    )


def _seed(setup: Setup) -> None:
    """Ranks have different seeds, as in training."""
    torch.manual_seed(setup.spec.training.seed + setup.process.rank)


def _draw(setup: Setup, batch: GlobalBatch) -> tuple[float, float]:
    """The loss per target token of the whole batch and the norm of its gradient. Changes no weights,
    because the learning rate is 0."""
    loss, norm = optimizer_step(setup, batch, 0.0)
    return float(setup.strategy.sum(loss.detach().double())) / batch.target_tokens, float(norm)


def _slope(
    setup: Setup, batch: GlobalBatch, norm: float, direction: list[Tensor | None]
) -> float | None:
    """The change of the loss along its gradient over the predicted change: a central difference with
    the masks of the first draw. None if the gradient is 0 or not finite."""
    (norm,) = setup.strategy.gather([norm])[0]
    if not math.isfinite(norm) or not norm:
        return None
    limit = setup.spec.training.clip_norm
    clipped = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
    whole = format_of(setup.spec) is SINGLE
    slope, at = math.nan, 0.0
    for change in (CHANGE, CHANGE_CURVED) if whole else (CHANGE_ROUNDED,):
        length = change / (clipped * norm**2)
        sides = []
        for place in (length, -length):
            setup.strategy.update(_moved(setup, direction, place - at))
            at = place
            _seed(setup)
            sides.append(_draw(setup, batch)[0])
        slope = (sides[0] - sides[1]) / (2 * change)
        if abs(slope - 1) < NEAR_A_BOUND * SLOPE:
            break
    return slope


def _moved(setup: Setup, direction: list[Tensor | None], length: float) -> Callable[[], Tensor]:
    """An update that moves the weights along ``direction`` by ``length`` times the gradient."""

    @torch.no_grad()
    def update() -> Tensor:
        # The optimizer may keep wider weights. In the narrower ones, rounding would hide small moves.
        masters = masters_of(setup.optimizer)
        for parameter, step in zip(setup.module.parameters(), direction, strict=True):
            if step is not None:
                kept = masters.get(parameter, parameter)
                kept.add_(step.to(kept.dtype), alpha=length)
                if kept is not parameter:
                    parameter.copy_(kept)
        return torch.zeros((), device=setup.device)

    return update


def _copies(setup: Setup, micro_batches: int) -> GlobalBatch:
    """A batch with the first pairs of the training in every micro-batch of every rank."""
    spec = setup.spec
    batching = FixedSize(kind="fixed_size", pairs=PAIRS, rows=spec.batching.rows)
    feed = Feed(setup.train_store, batching, spec.training.seed, 0, 1, 1, setup.device, prefetch=0)
    with closing(feed.batches()) as batches:
        (micro,) = (whole := next(batches)).micro_batches
    tokens = int((micro.target_output != PAD).sum())
    return replace(whole, micro_batches=[micro] * micro_batches, target_tokens=tokens * COPIES)
