"""What dropout does to known inputs: which share it drops, where, and how it scales the rest.

Masks inside fused kernels cannot be read, and code that reads masks would have to know every
implementation. So a model is given weights for which its logits tell the masks, whatever computes
it. All weights are 0 but those of one sub-layer, normalizations and embeddings. That sub-layer adds
to each element j of a token the number a_j (1 + r), where a_j is 1 or -1 times a large constant,
and r is what dropout inside the sub-layer leaves of a 1: of an attention weight, or of a unit of
the feed-forward layer. Then dropout of the sub-layer's output follows, whose factor is m. An
element of the stream is then a_j m (1 + r): 0 where the output was dropped, one level where what is
inside was dropped, and a higher one where all was kept; the ratio of the levels is 1 + the factor
of what was kept inside. Embeddings are read in the same way beside the output of a sub-layer.

By what outputs are multiplied is seen beside the embedding: every sub-layer adds to elements of its
own, and the embedding to all others.

The encoder is seen through cross-attention: a source of one token, at which all tokens of the
target look, each through masks of its own. What none of them sees was dropped in the encoder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from schemas.results.equivalence import Agreement, DropoutPlace
from transformer_core.data.tokenizing.special_tokens import BOS, EOS
from transformer_core.measure.trajectory.canonical_tensors import CanonicalTensors
from transformer_core.train.assemble import Setup

LOUD = 1000.0
"""Size of what a sub-layer adds, beside embeddings of size 1."""
DECODER, ENCODER = (192, 2), (32, 16)
"""Sentences of a batch, and target tokens of each: an encoder is seen by many tokens of a target,
and attention weights of a decoder at the first token only, which has one key."""
EVALUATED = 4
"""Sentences of the pass in evaluation, where a single element tells."""
READ_OUT = 4
"""Times the width of the model: logits that the stream is read from. More of them tell no more."""
BITS = 2_000
"""Elements of a mask that are compared between ranks."""
WORD = 4
"""The token that all targets are made of."""
TOKENS = tuple(range(WORD + 1))
"""Padding, begin, end, unknown and WORD: they are what is read in, all others what is read out."""


@dataclass(frozen=True)
class Gadget:
    """Weights for which the logits tell the masks of some places."""

    names: tuple[str, ...]
    """The place inside, and that of the output; or every output that adds to the stream."""
    weights: dict[str, Tensor]
    encoder: bool
    """Whether it is seen through cross-attention."""
    shape: tuple[int, int]
    """Sentences and tokens of the batch that it is seen with."""
    kind: str
    """What the place inside drops: heads, elements, or an embedding beside the output; beside, if
    the places are outputs beside the embedding."""


Mask = tuple[Tensor, float | None]
"""1 kept, 0 dropped, -1 not seen, [rows, ...]; and the factor of what was kept."""


class KnownDropout:
    """Reads the masks of a training's model. Every rank must make one and call it."""

    embeddings: tuple[str, ...] = ("source_embedding.weight", "target_embedding.weight")
    """Names of the embeddings."""
    read_in: ClassVar[dict[str, list[int]]] = {"source": [EOS], "target": [BOS, WORD]}
    """The tokens of each side."""

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
        # In units of LOUD: anchors are never taken for anything else.
        self.level = torch.where(self.anchor, 3.0, 1.0)
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(vocabulary, self.d, generator=generator) / self.d**0.5
        self.words = slice(len(TOKENS), len(TOKENS) + READ_OUT * self.d)
        # By what the model multiplies embeddings.
        self.scale = self.d**0.5
        self.inverse = torch.linalg.pinv(self.embedding[self.words].double()).T.float()

    def read(self) -> list[DropoutPlace]:
        """Every place once: for each the masks of two passes, and one in evaluation."""
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
                        steps=_agreement(kept, again),
                        rows=_agreement(kept[: rows // 2], kept[rows // 2 :]),
                        layers=_agreement(kept, before[kind]) if kind in before else None,
                        ranks=self._ranks(kept),
                        tokens=_between(kept, 1),
                        elements=_between(kept, 2),
                    )
                )
                before[kind] = kept
        return found

    def _ranks(self, kept: Tensor) -> Agreement | None:
        if self.setup.process.world_size == 1:
            return None
        everyone = self.setup.strategy.gather(kept.flatten()[:BITS].tolist())
        return _agreement(torch.tensor(everyone[0]), torch.tensor(everyone[1]))

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
            quiet = LOUD / 2 * self.sign * ~self.anchor
            weights = self._blank(side, quiet)
            weights[f"{first}self_attention.output.bias"] = LOUD * self.sign * self.level
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
        """All ``outputs`` of a side, each on elements of its own, beside the embedding."""
        weights = self._blank(side, LOUD * self.sign * self.anchor)
        outputs = outputs[: int((~self.anchor).sum())]
        for number, name in enumerate(outputs):
            mine = torch.zeros(self.d)
            mine[(~self.anchor).nonzero().flatten()[number :: len(outputs)]] = LOUD
            weights[f"{name}.bias"] = mine * self.sign
        names = tuple(f"{name} beside the embedding" for name in outputs)
        return self._gadget(names, weights, "beside")

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
        return Gadget(names, weights, encoder, ENCODER if encoder else DECODER, kind)

    def _signal(self, weights: dict[str, Tensor], name: str, width: int) -> None:
        matrix = torch.zeros(self.d, width)
        element = torch.arange(self.d)
        matrix[element, element % width] = LOUD * self.sign * ~self.anchor
        weights[f"{name}.weight"] = matrix
        weights[f"{name}.bias"] = LOUD * self.sign * self.level

    def _blank(self, side: str | None = None, stream: Tensor | None = None) -> dict[str, Tensor]:
        """Weights with which nothing happens but the embedding, which begins the stream of
        ``side`` with these elements [d]."""
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
        """The masks of one forward pass of so many sentences."""
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
        high = stream[..., plus].amax(-1, keepdim=True)
        low = stream[..., minus].amin(-1, keepdim=True)
        middle, half = (high + low) / 2, (high - low) / 2
        # Where all have one level, what normalization takes off the stream is small beside it.
        top = 1.0 if gadget.kind == "beside" else 3.0
        level = top * self.sign * (stream - middle) / half
        if gadget.encoder:
            level = self._through_cross_attention(level)
        return self._masks(gadget, level)

    def _through_cross_attention(self, level: Tensor) -> Tensor:
        """[rows, n, d] as n target tokens see the memory -> [rows, 1, d] of the memory.

        A token sees an element that its own two masks let pass. 0 is what hardly any of them sees.
        """
        visible = (1 - self.setup.spec.model.dropout) ** 2
        seen = level > 0.25
        typical = level.masked_fill(~seen, math.nan).nanmedian(1, keepdim=True).values
        return typical.where(seen.sum(1, keepdim=True) > visible * level.size(1) / 3, 0.0)

    def _masks(self, gadget: Gadget, level: Tensor) -> tuple[Mask, ...]:
        """Masks from the levels [rows, n, d] of the elements; anchors have 3, or 1."""
        signal = level[..., ~self.anchor]
        if gadget.kind == "beside":
            count = len(gadget.names)
            return tuple(_of_output(signal[..., number::count]) for number in range(count))
        if gadget.kind == "embedding":
            # 0, 1/2, 1 or 3/2: the embedding has half the size of the output.
            outer = signal > 0.75
            inner = torch.where(outer, signal - 1, signal) > 0.25
            beside = signal[outer & inner]
            factor = float(2 * (beside.mean() - 1)) if beside.numel() else None
            return (inner.float(), factor), (outer.float(), None)
        outer = signal > 0.5
        if gadget.kind == "heads":
            # All elements of a head share a weight. The first token of a target has one key.
            signal = signal[:, :1] if "self_attention" in gadget.names[0] else signal
            signal = signal.unflatten(-1, (self.heads, -1)).amax(-1)
        inner = torch.where(signal > 1.5, 1.0, torch.where(signal > 0.5, 0.0, -1.0))
        kept = signal[inner == 1]
        factor = float(kept.mean() - 1) if kept.numel() else None
        return (inner, factor), (outer.float(), None)


def _of_output(signal: Tensor) -> Mask:
    """The mask of levels that are 0 or 1, and the factor of those that are kept."""
    kept = signal > 0.5
    return kept.float(), float(signal[kept].mean()) if kept.any() else None


def _between(mask: Tensor, dimension: int) -> Agreement | None:
    """Of neighbours in a dimension of a mask [rows, tokens, elements or heads]."""
    pairs = mask.size(dimension) // 2
    if not pairs:
        return None
    both = mask.narrow(dimension, 0, 2 * pairs).unflatten(dimension, (pairs, 2))
    return _agreement(*both.unbind(dimension + 1))


def _agreement(one: Tensor, other: Tensor) -> Agreement:
    """In how many elements two masks are alike, where both were seen."""
    seen = (one >= 0) & (other >= 0)
    return Agreement(same=int((one == other)[seen].sum()), of=int(seen.sum()))
