"""Certificates of users' models with frozen weights and buffers."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schemas.config.measurement import Bitwise, Statistical, Tolerance
from tests.attacks.planted.changes import BF16, Change
from tests.attacks.short_trainings import certificate, recorded, reference, spec_of
from transformer_core.training import loop

CLASSES: dict[str, Any] = {
    "bitwise": Bitwise(kind="bitwise"),
    "tolerance": Tolerance(kind="tolerance"),
    "statistical": Statistical(kind="statistical"),
}


class Sums(nn.Module):
    """Predicts from the mean of the source and the sum of the target so far."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.inner, self.output = nn.Linear(width, width), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source [b, s], target_input [b, t] -> logits [b, t, v] of the next tokens."""
        real = (source != 0)[..., None]
        read = (self.source(source) * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        x = read + self.target(target_input).cumsum(1)
        return self.output(x + self.changed(x, source).tanh())

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        """x [b, t, d] of sentences ``source`` [b, s] -> [b, t, d]."""
        return self.inner(x)


class Masked(Sums):
    """Has frozen embeddings, and a mask with infinite elements in a buffer."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.source.requires_grad_(False)
        self.register_buffer("mask", torch.full((32, 32), -math.inf).triu(1))

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) + self.mask[: x.size(1), : x.size(1)]
        return self.inner(scores.softmax(-1).to(x.dtype) @ x)


MODELS: dict[str, type[Sums]] = {"masked": Masked}


def build(spec: Any, vocabulary: int) -> nn.Module:
    return MODELS[spec.options["model"]](vocabulary, spec.d_model)


def study(model: str) -> Change:
    own = {"kind": "import", "factory": "test_certify_own_models:build"}
    return {"model": own | {"options": {"model": model}}}


@pytest.mark.parametrize("kind", list(CLASSES))
@pytest.mark.parametrize("changed", [None, "own.source.weight", "own.mask"])
def test_frozen_weights_and_constant_buffers_must_stay_as_they_are(kind, changed, monkeypatch):
    base, seeds = study("masked"), 3 if kind == "statistical" else 1
    if kind == "bitwise":
        against = recorded(spec_of({}, base))
    else:
        against = reference(json.dumps(base, sort_keys=True), seeds)
    real, change = loop.optimizer_step, BF16 if kind == "statistical" else {}

    def step(setup, *given):
        done = real(setup, *given)
        if changed is not None:
            setup.model.state_dict()[changed][-1, 0] += 0.01
        return done

    monkeypatch.setattr(loop, "optimizer_step", step)
    found = certificate(CLASSES[kind], recorded(spec_of(change, base), seeds), against)
    assert found.left_out == []
    failed = [(d.quantity, d.where) for d in found.deviations if not d.holds]
    if changed is None:
        assert failed == []
    else:
        assert ("weights", changed) in failed
