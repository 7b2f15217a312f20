"""The disturbed copy of a script, from which floors come: kinks at 0 and states of recurrent layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from transformer_core.tune import disturbance

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
    for owner, name in disturbance.FUNCTIONS:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    disturbance.cross_over()


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


@pytest.fixture
def unrounded(monkeypatch):
    """Puts the layers back at the end of a test."""
    for kind in disturbance.RECURRENT:
        monkeypatch.setattr(kind, "forward", kind.forward)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_rounds_its_state_at_every_place(kind, unrounded):
    torch.manual_seed(1)
    layer = kind(6, 8, num_layers=2, batch_first=True)
    x = torch.randn(3, 20, 6)
    whole, last = layer(x)
    disturbance.round_states()
    result, state = layer(x)
    assert torch.equal(result, result.bfloat16().float())
    off = ((result - whole).norm(dim=(0, 2)) / whole.norm(dim=(0, 2))).tolist()
    assert 0 < off[0] < max(off) < 0.02
    hidden = (state[0], last[0]) if kind is nn.LSTM else (state, last)
    assert torch.allclose(*hidden, atol=0.02)


def test_layers_of_both_directions_stay_as_they_are(unrounded):
    layer = nn.GRU(6, 8, bidirectional=True)
    x = torch.randn(5, 3, 6)
    before = layer(x)[0]
    disturbance.round_states()
    assert torch.equal(layer(x)[0], before)
