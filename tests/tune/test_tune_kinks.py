"""Inputs of functions that bend at 0, in the copy of a script that tells how far rounding goes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from transformer_core.tune import kinks

BENT = {
    "module": (nn.ReLU(), 0.0),
    "in place": (nn.ReLU(inplace=True), 0.0),
    "function": (functional.relu, 0.0),
    "method": (lambda x: x.relu(), 0.0),
    "leaky": (nn.LeakyReLU(0.2), 0.2),
    "leaky in place": (nn.LeakyReLU(0.2, inplace=True), 0.2),
    "up to six": (nn.ReLU6(), 0.0),
    "learnt": (nn.PReLU(init=0.25), 0.25),
}


@pytest.fixture
def crossed(monkeypatch):
    """The functions as in such a copy, until the end of the test."""
    for owner, name in kinks.FUNCTIONS:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    kinks.cross_over()


@pytest.mark.parametrize("name", BENT)
def test_an_input_near_0_falls_on_the_other_side(crossed, name):
    bent, slope = BENT[name]
    x = torch.tensor([1.0, -1.0, 1e-7, -1e-7, 1e-3, -1e-3, 0.0], requires_grad=True)
    bent(x * 1).sum().backward()
    assert x.grad.tolist()[:6] == pytest.approx([1, slope, slope, 1, 1, slope])


def test_values_stay(crossed):
    x = torch.tensor([1.0, -1.0, 1e-7, -1e-7], requires_grad=True)
    assert functional.relu(x * 1).tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
    with torch.no_grad():
        assert functional.relu(x).tolist() == [1, 0, x[2].item(), 0]


def test_large_numbers_of_16_bits_are_not_all_near(crossed):
    x = torch.full((4,), 1e4, dtype=torch.float16, requires_grad=True)
    functional.relu(x * 1).sum().backward()
    assert x.grad.tolist() == [1.0] * 4
