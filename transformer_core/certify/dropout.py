"""Dropout of known inputs: which share is dropped, where, and how the rest is scaled.

Masks inside fused kernels cannot be read, and code that reads masks would have to know every
implementation. So a model is given weights for which its logits reveal the masks, whatever kernel
computes them. All weights are 0 except those of one sub-layer, normalizations and embeddings. That
sub-layer adds a_j (1 + r) to each element j of a token, where a_j is 1 or -1 times a large constant,
and r is what dropout inside the sub-layer leaves of a 1: an attention weight, or a unit of the
feed-forward layer. Then dropout is applied to the sub-layer's output, with factor m. An element of
the stream is then a_j m (1 + r): 0 if the output was dropped, one level if the inner element was
dropped, and a higher one if both were kept; the ratio of the levels is 1 + the inner scale factor.
Embeddings are read in the same way beside the output of a sub-layer.

The scale factor of outputs is observed beside the embedding: every sub-layer adds to its own
elements, and the embedding to all others.

The encoder is observed through cross-attention: all target tokens attend to a source of one token,
each through its own masks. An element that none of them sees was dropped in the encoder.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

import torch
from scipy.stats import binom
from torch import Tensor

from schemas.config.data import FixedSize
from schemas.config.model import DecoderOnly, SinusoidalPositions, TorchTransformer, Transformer
from schemas.config.run_spec import RunSpec
from schemas.results.certificates import Agreement, DropoutMoments, DropoutPlace
from transformer_core.certify.number_formats import SINGLE, format_of
from transformer_core.certify.tensors import CanonicalTensors
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import BOS, EOS, PAD
from transformer_core.models.objective import objective
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import optimizer_step
from transformer_core.training.optimizer import masters_of

Mask = tuple[Tensor, float | None]
"""1 kept, 0 dropped, -1 not observed, [rows, ...]; and the scale factor of kept elements."""
LOUD = 1000.0
"""Size of a sub-layer's contribution, relative to embeddings of size 1."""
DECODER = (192, 2)
"""Sentences per batch, and target tokens per sentence: a decoder's attention weights are
observed only at the first token, which has a single key."""
ENCODED = 32
"""Sentences used to observe an encoder, each through many target tokens."""
EVALUATED = 4
"""Sentences in the evaluation pass, where a single element is enough."""
READ_OUT = 4
"""Logits used to read the stream, as a multiple of the model's width. More give no more
information."""
BITS = 2_000
"""Elements of a mask compared between ranks."""
WORD = 4
"""The token that all targets consist of."""
TOKENS = tuple(range(WORD + 1))
"""Padding, begin, end, unknown and WORD are the inputs; all other tokens are used as outputs."""


@dataclass(frozen=True)
class Gadget:
    """Weights that let the logits reveal the masks of some places."""

    names: tuple[str, ...]
    """The place inside, and that of the output; or all outputs that add to the stream."""
    weights: dict[str, Tensor]
    encoder: bool
    """Whether it is observed through cross-attention."""
    shape: tuple[int, int]
    """Sentences and tokens of the batch used to observe it."""
    kind: str
    """Kind of the inner place: heads, elements, or an embedding beside the output; beside, if
    the places are outputs beside the embedding."""


class KnownDropout:
    """Reads the masks of a training's model. Every rank must create one and call it."""

    embeddings: tuple[str, ...] = ("source_embedding.weight", "target_embedding.weight")
    """Names of the embeddings."""
    read_in: ClassVar[dict[str, list[int]]] = {"source": [EOS], "target": [BOS, WORD]}
    """Input tokens of each side."""

    def __init__(self, setup: Setup, vocabulary: int) -> None:
        self.setup, self.vocabulary = setup, vocabulary
        self.tensors = CanonicalTensors(setup, vocabulary)
        self.model: Any = setup.model
        spec: Any = setup.spec.model
        self.spec = spec
        self.d, self.heads = spec.d_model, spec.heads
        element = torch.arange(self.d)
        self.sign = 1.0 - 2.0 * (element % 2)
        self.anchor = element % 4 >= 2
        self.head = element[~self.anchor] // (self.d // self.heads)
        # In units of LOUD: anchors are never taken for anything else.
        self.level = torch.where(self.anchor, 3.0, 1.0)
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(vocabulary, self.d, generator=generator) / self.d**0.5
        self.words = slice(len(TOKENS), len(TOKENS) + READ_OUT * self.d)
        # By what the model multiplies embeddings.
        self.scale = self.d**0.5
        # A target token sees an element of the memory that its own two masks let pass.
        self.visible = (1 - spec.dropout) ** 2
        self.inverse = torch.linalg.pinv(self.embedding[self.words].double()).T.float()

    def read(self) -> list[DropoutPlace]:
        """Every place once, each with the masks of two training passes and one evaluation pass."""
        found: list[DropoutPlace] = []
        before: dict[str, Tensor] = {}
        for gadget in self._gadgets():
            self.tensors.write(gadget.weights)
            # The same seed for all places: masks that are equal although the places differ are made
            # from it alone. Ranks have seeds of their own, as in the training.
            torch.manual_seed(self.setup.spec.training.seed + self.setup.process.rank)
            rows = gadget.shape[0]
            first, second = self._pass(gadget, rows), self._pass(gadget, rows)
            self.model.eval()
            evaluated = self._pass(gadget, EVALUATED)
            self.model.train()
            for number, name in enumerate(gadget.names):
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
        return found

    def _ranks(self, kept: Tensor) -> Agreement | None:
        if self.setup.process.world_size == 1:
            return None
        everyone = self.setup.strategy.gather(kept.flatten()[:BITS].tolist())
        return agreement(torch.tensor(everyone[0]), torch.tensor(everyone[1]))

    def _gadgets(self) -> Iterator[Gadget]:
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
            yield self._gadget(names, weights, "embedding")
        if self.spec.norm == "pre":  # else the stream has the same size after every sub-layer
            of_encoder = ("self_attention.output", "feed_forward.outer")
            of_decoder = ("cross_attention.output", *of_encoder)
            sides = (("source", "encoder", of_encoder), ("target", "decoder", of_decoder))
            for side, stack, parts in sides:
                layers = getattr(self.spec, f"{stack}_layers")
                yield self._beside(side, [f"{stack}.{i}.{p}" for i in range(layers) for p in parts])

    def _beside(self, side: str, outputs: Sequence[str]) -> Gadget:
        """All ``outputs`` of a side, each on its own elements, beside the embedding."""
        weights = self._blank(side, LOUD * self.sign * self.anchor)
        outputs = outputs[: int((~self.anchor).sum())]
        for number, name in enumerate(outputs):
            mine = torch.zeros(self.d)
            mine[(~self.anchor).nonzero().flatten()[number :: len(outputs)]] = LOUD
            weights[f"{name}.bias"] = mine * self.sign
        names = tuple(f"{name} beside the embedding" for name in outputs)
        return self._gadget(names, weights, "beside")

    def _beside_embedding(self, side: str, bias: str) -> dict[str, Tensor]:
        """Weights of one output beside the embedding, which is half its size."""
        weights = self._blank(side, LOUD * self.sign * ~self.anchor)
        weights[bias] = LOUD * self.sign * torch.where(self.anchor, 3.0, 2.0)
        return weights

    def _attention(self, at: str, name: str, value: str, residual: int) -> Gadget:
        weights = self._blank()
        weights[f"{at}{name}.{value}.bias"].fill_(1.0)
        self._signal(weights, f"{at}{name}.output", self.d)
        names = (f"{at}{name} weights", f"{at}residuals.{residual}")
        return self._gadget(names, weights, "heads")

    def _feed_forward(self, at: str, residual: int) -> Gadget:
        weights = self._blank()
        width = self.setup.spec.model.d_ff
        weights[f"{at}feed_forward.inner.bias"] = torch.ones(width)
        self._signal(weights, f"{at}feed_forward.outer", width)
        names = (f"{at}feed_forward", f"{at}residuals.{residual}")
        return self._gadget(names, weights, "elements")

    def _gadget(self, names: tuple[str, ...], weights: dict[str, Tensor], kind: str) -> Gadget:
        encoder = names[-1].startswith("encoder")
        if encoder:
            # The memory reaches the logits through the first cross-attention.
            cross = "decoder.0.cross_attention."
            weights[f"{cross}project_memory.value.weight"] = torch.eye(self.d)
            weights[f"{cross}output.weight"] = LOUD * torch.eye(self.d)
        shape = (ENCODED, enough_tokens(self.visible)) if encoder else DECODER
        return Gadget(names, weights, encoder, shape, kind)

    def _signal(self, weights: dict[str, Tensor], name: str, width: int) -> None:
        matrix = torch.zeros(self.d, width)
        element = torch.arange(self.d)
        matrix[element, element % width] = LOUD * self.sign * ~self.anchor
        weights[f"{name}.weight"] = matrix
        weights[f"{name}.bias"] = LOUD * self.sign * self.level

    def _blank(self, side: str | None = None, stream: Tensor | None = None) -> dict[str, Tensor]:
        """Weights that do nothing except embed, which starts the stream of ``side`` with these
        elements [d]."""
        weights = {}
        for name, tensor in self.tensors.pattern_weights().items():
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
        """source [b, s], target [b, t] -> [b, t, v]."""
        found: Tensor = self.model(source, target)
        return found

    @torch.no_grad()
    def _pass(self, gadget: Gadget, rows: int) -> tuple[Mask, ...]:
        """The masks of one forward pass over this many sentences."""
        device = self.setup.device
        source = torch.full((rows, 1), EOS, device=device)
        target = torch.full((rows, gadget.shape[1]), WORD, device=device)
        target[:, 0] = BOS
        with self.setup.precision.autocast():
            logits = self.logits(source, target)
        logits = logits.view(*target.shape, -1)[..., self.words].float().cpu()
        stream = logits @ self.inverse
        # Anchors of both signs tell what normalization has done to the stream.
        plus, minus = self.anchor & (self.sign > 0), self.anchor & (self.sign < 0)
        high, low = _highest(stream[..., plus]), -_highest(-stream[..., minus])
        middle, half = (high + low) / 2, (high - low) / 2
        # Where all have one level, what normalization takes off the stream is small beside it.
        top = 1.0 if gadget.kind == "beside" else 3.0
        level = self._where_anchored(top * self.sign * (stream - middle) / half)
        if gadget.encoder:
            level = self._through_cross_attention(level)
        return read_masks(gadget.kind, gadget.names, level[..., ~self.anchor], self.head)

    def _where_anchored(self, level: Tensor) -> Tensor:
        """NaN for tokens that lost all anchors of one sign: their elements have impossible
        levels."""
        highest = 1.25 * max(3.0, 1 + 1 / (1 - self.spec.dropout))
        signal = level[..., ~self.anchor]
        possible = (signal > -1) & (signal < highest)
        return level.where(possible.all(-1, keepdim=True), math.nan)

    def _through_cross_attention(self, level: Tensor) -> Tensor:
        """[rows, n, d] as n target tokens see the memory -> [rows, 1, d] of the memory.

        0 means that hardly any of them sees it. Elements that a token does not see are 0 except for
        the mean that normalization subtracts from the memory.
        """
        seen = level > 0.6
        looking = (~level.isnan()).sum(1, keepdim=True)
        typical = level.masked_fill(~seen, math.nan).nanmedian(1, keepdim=True).values
        typical = typical.where(seen.sum(1, keepdim=True) > self.visible * looking / 3, 0.0)
        return typical.where(looking > 0, math.nan)


def _highest(anchors: Tensor) -> Tensor:
    """[..., n] -> [..., 1] the mean of the kept anchors. The highest anchor alone would be the
    one that rounding has made largest."""
    kept = anchors > 0.75 * anchors.amax(-1, keepdim=True)
    return (anchors * kept).sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)


def enough_tokens(visible: float) -> int:
    """Target tokens, a multiple of 16, so that with probability 0.999 an element of the memory
    that each of them sees with probability ``visible`` is seen by at least a third of the expected
    number."""
    return next(n for n in count(16, 16) if binom.cdf(visible * n / 3, n, visible) < 1e-3)


def readable_vocabulary(spec: RunSpec, vocabulary: int) -> int | None:
    """Vocabulary size that a model needs for reading its dropout: at most the number of logits
    read, and at most the actual size. Null if nothing can be read: for other libraries' models,
    and if the vocabulary is too small relative to the model for the logits to reveal the stream."""
    model = spec.model
    readable = isinstance(model, Transformer | TorchTransformer | DecoderOnly)
    if not readable or vocabulary < model.d_model + 2 * len(TOKENS) or model.d_model % 4:
        return None
    # A multiple of eight, which matrix-product kernels prefer.
    return min(vocabulary, 8 * math.ceil((len(TOKENS) + READ_OUT * model.d_model) / 8))


def readable(spec: RunSpec) -> RunSpec:
    """``spec`` with the parts needed for reading: a language model without biases gets some, so
    that its sub-layers add known numbers. No other computation changes."""
    if isinstance(spec.model, DecoderOnly):
        return spec.model_copy(update={"model": spec.model.model_copy(update={"bias": True})})
    return spec


def known_dropout(setup: Setup, vocabulary: int) -> list[DropoutPlace]:
    """Every dropout place in the model of ``setup``, whose weights are overwritten; its spec
    must be :func:`readable`, with :func:`readable_vocabulary` tokens. Every rank must call this."""
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
        """target [b, t] -> [b, t, v]; there is no source."""
        found: Tensor = self.objective.logits(source[:, :0], target)
        return found

    def _gadgets(self) -> Iterator[Gadget]:
        layers = [f"layers.{number}." for number in range(self.spec.layers)]
        for at in layers:
            yield self._attention(at, "self_attention", "project.value", 0)
        weights = self._beside_embedding("text", f"{layers[0]}self_attention.output.bias")
        names = ("text embedding", f"{layers[0]}residuals.0 beside it")
        yield self._gadget(names, weights, "embedding")
        parts = ("self_attention.output", "feed_forward.outer")
        yield self._beside("text", [f"{at}{part}" for at in layers for part in parts])


def read_masks(kind: str, names: Sequence[str], signal: Tensor, head: Tensor) -> tuple[Mask, ...]:
    """The masks of the places ``names``, read according to ``kind``
    (:class:`transformer_core.certify.dropout.Gadget`).

    ``signal`` [rows, n, elements] has the levels of all elements except anchors, NaN if a token
    does not reveal them; ``head`` [elements] is the head of each.
    """
    if kind == "beside":
        return tuple(_of_output(signal[..., number :: len(names)]) for number in range(len(names)))
    unseen = signal.isnan()
    if kind == "embedding":
        # 0, 1, 2 or 3: the embedding has half the size of the output.
        outer = signal > 1.5
        inner = torch.where(outer, signal - 2, signal) > 0.5
        beside = signal[outer & inner]
        factor = float(beside.mean() - 2) if beside.numel() else None
        return (_mask(inner, unseen), factor), (_mask(outer, unseen), None)
    outer = _mask(signal > 0.5, unseen)
    if kind == "heads":
        # All elements of a head share a weight. The first token of a target has one key.
        signal = signal[:, :1] if "self_attention" in names[0] else signal
        heads = range(int(head.max()) + 1)
        signal = torch.stack([signal[..., head == number].amax(-1) for number in heads], -1)
    inner = torch.where(signal > 1.5, 1.0, torch.where(signal > 0.5, 0.0, -1.0))
    kept = signal[inner == 1]
    return (inner, float(kept.mean() - 1) if kept.numel() else None), (outer, None)


def _mask(kept: Tensor, unseen: Tensor) -> Tensor:
    """Mask from ``kept``, marking ``unseen`` elements as not observed."""
    return kept.float().masked_fill(unseen, -1.0)


def _of_output(signal: Tensor) -> Mask:
    """The mask for levels of 0 or 1, and the scale factor of kept elements."""
    kept = signal > 0.5
    return _mask(kept, signal.isnan()), float(signal[kept].mean()) if kept.any() else None


def between(mask: Tensor, dimension: int) -> Agreement | None:
    """Agreement of neighbours along a dimension of a mask [rows, tokens, elements or heads]."""
    pairs = mask.size(dimension) // 2
    if not pairs:
        return None
    both = mask.narrow(dimension, 0, 2 * pairs).unflatten(dimension, (pairs, 2))
    return agreement(*both.unbind(dimension + 1))


def agreement(one: Tensor, other: Tensor) -> Agreement:
    """Number of elements in which two masks agree, among those observed in both; rows that only the
    longer mask has are ignored."""
    count = min(len(one), len(other))
    one, other = one[:count], other[:count]
    seen = (one >= 0) & (other >= 0)
    return Agreement(same=int(((one == other) & seen).sum()), of=int(seen.sum()))


PAIRS = 2
"""Sentence pairs per copy: few, so that their loss varies widely."""
COPIES = 4
"""Copies of the pairs in a batch, over all ranks and micro-batches."""
DRAWS = 4
CHANGE, CHANGE_ROUNDED = 0.02, 0.05
"""Target change of the loss for the slope, in nats: large relative to rounding, small enough for
curvature to be negligible. The second is for losses with fewer bits."""


def dropout_moments(setup: Setup) -> DropoutMoments | None:
    """Loss and gradient of the training ``setup`` at its weights, with dropout on. Afterwards
    the setup is unusable until its weights are replaced; every rank must call this. Null if the
    copies cannot be divided among the ranks."""
    _, shares = setup.strategy.share
    if COPIES % shares:
        return None
    return _Draws(setup, COPIES // shares).read()


@dataclass
class _Draws:
    setup: Setup
    micro_batches: int
    losses: list[float] = field(default_factory=list)
    """Losses of this rank's copies, in order."""

    def __post_init__(self) -> None:
        self.batch = _copies(self.setup, self.micro_batches)
        self.tokens = self.batch.target_tokens / COPIES

    def read(self) -> DropoutMoments:
        setup = self.setup
        setup.module.train()
        hook = setup.module.register_forward_hook(self._keep)
        self._seed()
        _, norm = self._draw()
        norms = [norm]
        direction = [None if p.grad is None else p.grad.clone() for p in setup.module.parameters()]
        norms += [self._draw()[1] for _ in range(DRAWS - 1)]
        hook.remove()
        everyone = setup.strategy.gather(self.losses)
        shares = setup.strategy.share[1]
        if setup.strategy.held_back() is not None:
            norms = []
        return DropoutMoments(
            losses=[x / self.tokens for of_rank in everyone[:shares] for x in of_rank],
            grad_norms=[n for n in norms if math.isfinite(n)],
            slope=self._slope(norm, direction),
        )

    def _seed(self) -> None:
        torch.manual_seed(self.setup.spec.training.seed + self.setup.process.rank)

    def _draw(self) -> tuple[float, float]:
        """Loss per target token of the whole batch and norm of its gradient; no weights are
        updated."""
        loss, norm = optimizer_step(self.setup, self.batch, 0.0)
        total = float(self.setup.strategy.sum(loss.detach().double()))
        return total / self.batch.target_tokens, float(norm)

    def _keep(self, module: Any, given: Any, loss: Tensor) -> None:
        if loss.numel() == 1:  # on other ranks of a central loss it is something else
            self.losses.append(float(loss.detach()))
        else:
            self.losses.append(math.nan)

    def _slope(self, norm: float, direction: list[Tensor | None]) -> float | None:
        """Central difference along the gradient, with the masks of the first draw."""
        (norm,) = self.setup.strategy.gather([norm])[0]
        if not math.isfinite(norm) or not norm:
            return None
        limit = self.setup.spec.training.clip_norm
        clipped = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        change = CHANGE if format_of(self.setup.spec) is SINGLE else CHANGE_ROUNDED
        length = change / (clipped * norm**2)
        sides = []
        for move in (length, -2 * length):
            self.setup.strategy.update(_moved(self.setup, direction, move))
            self._seed()
            sides.append(self._draw()[0])
        return (sides[0] - sides[1]) / (2 * change)


def _moved(setup: Setup, direction: list[Tensor | None], length: float) -> Callable[[], Tensor]:
    """Returns an update along a gradient by ``length``."""

    @torch.no_grad()
    def update() -> Tensor:
        # If the optimizer keeps wider weights, small moves would be lost in the narrower ones.
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
    """The first pairs of the training, identical in every micro-batch of every rank."""
    spec = setup.spec
    batching = FixedSize(kind="fixed_size", pairs=PAIRS, rows=spec.batching.rows)
    feed = Feed(setup.train_store, batching, spec.training.seed, 0, 1, 1, setup.device, prefetch=0)
    with closing(feed.batches()) as batches:
        (micro,) = (whole := next(batches)).micro_batches
    tokens = int((micro.target_output != PAD).sum())
    return replace(whole, micro_batches=[micro] * micro_batches, target_tokens=tokens * COPIES)
