"""Of which models dropout can be read, and how: see
:mod:`transformer_core.certify.trajectory.dropout.known_dropout`."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor

from schemas.config.decoder_only import DecoderOnly, SinusoidalPositions
from schemas.config.model import TorchTransformer, Transformer
from schemas.config.run_spec import RunSpec
from schemas.results.equivalence import DropoutPlace
from transformer_core.certify.trajectory.dropout.known_dropout import (
    READ_OUT,
    TOKENS,
    WORD,
    Gadget,
    KnownDropout,
)
from transformer_core.data.tokenizing.special_tokens import BOS
from transformer_core.models.objective import objective
from transformer_core.training.assemble import Setup


def readable_vocabulary(spec: RunSpec, vocabulary: int) -> int | None:
    """Of how many tokens a model should know to have its dropout read: no more than logits are read
    of, and no more than there are. Null where nothing can be read: in other libraries' models, and
    where the vocabulary is so small beside the model that logits do not tell the stream."""
    model = spec.model
    readable = isinstance(model, Transformer | TorchTransformer | DecoderOnly)
    if not readable or vocabulary < model.d_model + 2 * len(TOKENS) or model.d_model % 4:
        return None
    # In eights, as kernels of matrix products like it.
    return min(vocabulary, 8 * math.ceil((len(TOKENS) + READ_OUT * model.d_model) / 8))


def readable(spec: RunSpec) -> RunSpec:
    """``spec`` with what is read through: a language model without biases gets some, by which its
    sub-layers add known numbers. Nothing else in it is computed otherwise."""
    if isinstance(spec.model, DecoderOnly):
        return spec.model_copy(update={"model": spec.model.model_copy(update={"bias": True})})
    return spec


def known_dropout(setup: Setup, vocabulary: int) -> list[DropoutPlace]:
    """Every place of dropout in the model of ``setup``, whose weights are overwritten; its spec is
    :func:`readable`, and it knows :func:`readable_vocabulary` tokens. Every rank must call this."""
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
