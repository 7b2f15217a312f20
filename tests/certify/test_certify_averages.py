"""Optimizers that validate an average of the weights."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from schemas.config.measurement import Tolerance
from tests.attacks.short_trainings import certificate, recorded, spec_of


class Averaging(Optimizer):
    """Descent that ends with the mean of its weights and the initial ones; its step overwrites the gradients,
    as that of the library schedulefree does."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, **_: Any) -> None:
        super().__init__(parameters, {"lr": lr, "k": 0, "weight_sum": 0.0, "lr_max": 0.0})
        self.averaged = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("first", p.clone())
                    p.sub_(p.grad.mul_(group["lr"]))

    @torch.no_grad()
    def _move(self, share: float) -> None:
        for p, state in self.state.items():
            p.lerp_(state["first"], share)

    def eval(self) -> None:
        if not self.averaged:
            self._move(0.5)
        self.averaged = True

    def train(self) -> None:
        if self.averaged:
            self._move(-1.0)
        self.averaged = False


def test_a_healthy_variant_keeps_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trained weights are compared, and the gradients that its step has overwritten."""
    library = SimpleNamespace(AdamWScheduleFree=Averaging)
    monkeypatch.setitem(sys.modules, "schedulefree", library)
    spec = spec_of({"training": {"optimizer": {"kind": "adamw_schedule_free"}}})
    found = certificate(Tolerance(kind="tolerance"), recorded(spec), recorded(spec, checked=False))
    assert found.status == "equivalent", found.reason
