"""Certificates of users' models with frozen weights and buffers."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schemas.base import merge
from schemas.config.measurement import Bitwise, Statistical, Tolerance
from tests.attacks.planted.changes import MASTERS, Change
from tests.attacks.short_trainings import (
    certificate,
    own_certificate,
    recorded,
    reference,
    spec_of,
)
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
    """Has frozen embeddings, a mask with infinite elements in a buffer, and one in bfloat16."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.source.requires_grad_(False)
        self.register_buffer("mask", torch.full((32, 32), -math.inf).triu(1))
        self.register_buffer("places", torch.linspace(0, 1, 32).bfloat16())

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        x = x + self.places[: x.size(1), None]
        scores = x @ x.transpose(1, 2) + self.mask[: x.size(1), : x.size(1)]
        return self.inner(scores.softmax(-1).to(x.dtype) @ x)


class Turned(Sums):
    """Turns pairs of elements by complex factors in a buffer, as programs from Llama do."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        angles = torch.arange(32.0)[:, None] / 100 ** (torch.arange(0.0, width, 2) / width)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * self.turns[: x.size(1)])
        return self.inner(turned.flatten(-2).to(x.dtype))


class Numbered(Sums):
    """Looks up rows by numbers in a buffer and in a frozen weight; most take more bits than 16-bit formats
    have."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        numbers = 2**25 + torch.arange(32) * 7919
        self.register_buffer("numbers", numbers)
        self.more = nn.Parameter(numbers.clone(), requires_grad=False)

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        numbers = (self.numbers + self.more)[: x.size(1)]
        rows = self.target(numbers % self.target.num_embeddings)
        return self.inner(x + rows)


class Experts(Sums):
    """Each sentence chooses one of several maps, by its tokens."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(32))

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        chosen = source.sum(1) % len(self.experts)
        return torch.cat(
            [self.experts[int(i)](row[None]) for i, row in zip(chosen, x, strict=True)]
        )


class Gains(Sums):
    """Scales maps by single numbers, whose gradients are sums of terms that nearly cancel."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.more = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.gains = nn.ParameterList(nn.Parameter(torch.tensor(0.5)) for _ in range(4))

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        for more, gain in zip(self.more, self.gains, strict=True):
            x = x + gain * more(x).tanh()
        return self.inner(x)


class Narrow(Sums):
    """Has one map in bfloat16."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width)
        self.inner.bfloat16()

    def changed(self, x: Tensor, source: Tensor) -> Tensor:
        return self.inner(x.bfloat16()).float()


MODELS: dict[str, type[Sums]] = {
    "masked": Masked,
    "turned": Turned,
    "numbered": Numbered,
    "experts": Experts,
    "gains": Gains,
    "narrow": Narrow,
}


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
    real, change = loop.optimizer_step, MASTERS if kind == "statistical" else {}

    def step(setup, *given):
        done = real(setup, *given)
        if changed is not None:
            setup.model.state_dict()[changed][-1, 0] += 0.01
        return done

    monkeypatch.setattr(loop, "optimizer_step", step)
    found = certificate(CLASSES[kind], recorded(spec_of(change, base), seeds), against)
    assert found.left_out == []
    if changed is None:
        assert found.status == "equivalent", found.reason
    else:
        failed = [(d.quantity, d.where) for d in found.deviations if not d.holds]
        assert ("weights", changed) in failed


@pytest.mark.parametrize("change", [{}, MASTERS])
@pytest.mark.parametrize("model", ["turned", "numbered"])
def test_complex_and_integer_buffers_are_used_as_they_are(model, change):
    found = own_certificate(recorded(spec_of(change, study(model))))
    assert [(d.quantity, d.where) for d in found.deviations if not d.holds] == []


def test_numbers_between_products_round_as_in_the_training() -> None:
    """With weights in bfloat16, nothing between two products is computed in 32 bits."""
    change = merge(MASTERS, {"training": {"seed": 13}})
    found = own_certificate(recorded(spec_of(change, study("gains"))))
    assert [(d.quantity, d.where) for d in found.deviations if not d.holds] == []


@pytest.mark.parametrize("checked", [True, False])
def test_weights_of_16_bits_are_refused_by_name(checked):
    with pytest.raises(ValueError, match=r"own\.inner\.weight of the model has torch\.bfloat16"):
        recorded(spec_of({}, study("narrow")), checked=checked)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_an_expert_that_no_token_chose_stays_as_it_is_for_a_step(optimizer):
    """Optimizers pass over weights without a gradient: they count no step, and moments do not decay."""
    if optimizer == "adamw_8bit":
        pytest.importorskip(
            "bitsandbytes", reason="bitsandbytes, an optional dependency, is missing"
        )
    base = merge(study("experts"), {"training": {"optimizer": {"kind": optimizer}}})
    found = own_certificate(recorded(spec_of({}, base)))
    assert [(d.quantity, d.where) for d in found.deviations if not d.holds] == []
