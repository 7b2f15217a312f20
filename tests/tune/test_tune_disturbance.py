"""The disturbed copy of a script, which measures floors: kinks at 0, maxima, recurrent states."""

import pickle
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from transformer_core.tune import disturbance

BENT = {
    "module": (nn.ReLU(), 0.0),
    "in place": (nn.ReLU(inplace=True), 0.0),
    "function": (lambda x: functional.leaky_relu(input=x, negative_slope=0.1), 0.1),
    "method": (lambda x: x.relu(), 0.0),
    "leaky": (nn.LeakyReLU(0.2), 0.2),
    "leaky in place": (nn.LeakyReLU(0.2, inplace=True), 0.2),
    "up to six": (nn.ReLU6(), 0.0),
    "learnt": (nn.PReLU(init=0.25), 0.25),
}


@pytest.fixture
def crossed(monkeypatch):
    """Replaces torch's functions as in such a copy, until the end of the test. The result takes whether a
    certificate compares the step."""
    pools = [(torch, name) for name, _ in disturbance.POOLINGS]
    for owner, name in [*disturbance.FUNCTIONS, *pools]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    step = SimpleNamespace(compared=True)
    disturbance.cross_over(lambda: step.compared)
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BENT)
def test_an_input_near_0_falls_on_the_other_side(crossed, name, dtype):
    bent, slope = BENT[name]
    bent = bent.to(dtype) if isinstance(bent, nn.Module) else bent
    x = torch.tensor([1.0, -1.0, 1e-7, -1e-7, 1e-3, -1e-3, 0.0], dtype=dtype, requires_grad=True)
    bent(x * 1).sum().backward()
    assert x.grad.tolist()[:6] == pytest.approx([1, slope, slope, 1, 1, slope])


def test_more_inputs_cross_in_bfloat16(crossed, monkeypatch):
    for owner, name in disturbance.FUNCTIONS:
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)
    disturbance.cross_zero(2.0**-7)
    x = torch.tensor([1.0, -1.0, 3e-3, -3e-3, 1e-2, -1e-2], requires_grad=True)
    nn.ReLU()(x * 1).sum().backward()
    assert x.grad.tolist() == [1, 0, 0, 1, 1, 0]


def test_values_and_large_numbers_of_16_bits_stay(crossed):
    x = torch.tensor([1.0, -1.0, 1e-7, -1e-7], requires_grad=True)
    assert functional.relu(x * 1).tolist() == pytest.approx([1, 0, 0, 0], abs=1e-6)
    with torch.no_grad():
        assert functional.relu(x).tolist() == [1, 0, x[2].item(), 0]
    x = torch.full((4,), 1e4, dtype=torch.float16, requires_grad=True)
    functional.relu(x * 1).sum().backward()
    assert x.grad.tolist() == [1.0] * 4


@pytest.mark.parametrize("bent", [functional.relu, lambda x: functional.max_pool1d(x, 2)])
def test_timed_steps_are_not_disturbed(bent, crossed):
    """Otherwise the copy, whose speed shows the noise, would be slower than the script."""
    x = torch.tensor([[1.0, 1.0, 1e-7, 0.0]], requires_grad=True)
    gradients = []
    for crossed.compared in (True, False):
        x.grad = None
        bent(x * 1).sum().backward()
        gradients.append(x.grad.tolist()[0])
    assert gradients[0] != gradients[1]
    assert gradients[1] == [1, bent is functional.relu, 1, 0]


POOLS = {
    "module": nn.MaxPool2d(2),
    "function": lambda x: functional.max_pool2d(x, 2, stride=2, padding=0),
    "one dimension": lambda x: functional.max_pool1d(x.flatten(-2)[..., [0, 1, 3, 4]], 2),
    "three dimensions": lambda x: functional.max_pool3d(x[:, None], (1, 2, 2)),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_maximum_that_is_nearly_shared_goes_to_the_other(crossed, name):
    x = torch.zeros(1, 1, 2, 6, requires_grad=True)
    # Two that are nearly equal, two of which one is larger, and two equal ones.
    with torch.no_grad():
        x[0, 0, 0] = torch.tensor([1.0, 1 - 1e-6, 0.0, 2.0, 1.0, 0.0])
        x[0, 0, 1] = -1
    pooled = POOLS[name](x * 1)
    pooled.sum().backward()
    given = x.grad[0, 0, 0].tolist()
    if name == "one dimension":
        assert given[:5] == [0, 1, 0, 1, 0]
    else:
        assert given[:4] == [0, 1, 0, 1]
        assert pooled.flatten().tolist() == pytest.approx([1, 2, 1], abs=1e-5)


def test_of_equal_inputs_another_gets_the_gradient(crossed):
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    plain = torch.ones(1, 1, 2, 2, requires_grad=True)
    torch._C._nn.max_pool2d_with_indices(plain, 2)[0].sum().backward()
    functional.max_pool2d(x * 1, 2).sum().backward()
    assert plain.grad.sum() == x.grad.sum() == 1
    assert not torch.equal(x.grad, plain.grad)


def test_windows_that_overlap(crossed):
    torch.manual_seed(1)
    x = torch.randn(2, 3, 9, 9).relu().requires_grad_()
    pooled = functional.max_pool2d(x * 1, 3, stride=2, padding=1)
    assert torch.allclose(pooled, nn.MaxPool2d(3, 2, 1, return_indices=True)(x)[0], atol=1e-4)


def test_dropout_is_off_however_its_arguments_are_given(monkeypatch):
    for name in (*disturbance.DROPOUTS, "scaled_dot_product_attention"):
        monkeypatch.setattr(functional, name, getattr(functional, name))
    rates: set[float] = set()
    disturbance.without_dropout(rates)
    x = torch.randn(1, 2, 8, 4)
    assert functional.dropout(x, 0.1) is functional.dropout(input=x, p=0.2) is x
    attend, mask = functional.scaled_dot_product_attention, torch.ones(8, 8).tril() > 0
    masked = attend(x, x, x, mask, 0.3)
    assert torch.equal(masked, attend(query=x, key=x, value=x, attn_mask=mask, dropout_p=0.4))
    assert torch.allclose(masked, attend(x, x, x, is_causal=True), atol=1e-6)
    assert functional.dropout(x) is functional.dropout(x, 0.9, training=False) is x
    assert rates == {0.1, 0.2, 0.3, 0.4, 0.5}


@pytest.fixture
def unrounded(monkeypatch):
    """Restores the layers at the end of a test."""
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


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"num_layers": 2, "dropout": 0.5}])
def test_layers_that_cannot_run_place_by_place_are_not_changed(options, unrounded):
    layer = nn.GRU(6, 8, **options)
    x = torch.randn(5, 3, 6)
    torch.manual_seed(1)
    before = layer(x)[0]
    disturbance.round_states()
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], before)


SEEDS = (
    *((torch, "manual_seed"), (torch.random, "manual_seed")),
    *((torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all")),  # set_seed of transformers
    *((random, "seed"), (np.random, "seed"), (np.random, "default_rng")),
)


def test_every_seed_that_a_script_sets_is_another(monkeypatch):
    given: list[int] = []
    for owner, name in SEEDS:
        monkeypatch.setattr(owner, name, given.append)
    disturbance.shift_seeds(3)
    given.clear()
    for owner, name in SEEDS:
        getattr(owner, name)(1)
    assert given == [4] * len(SEEDS)


def test_functions_that_set_seeds_are_pickled_by_their_names(monkeypatch):
    """As for the workers of a data loader, if they are spawned."""
    for owner, name in SEEDS:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    disturbance.shift_seeds(0)
    for owner, name in SEEDS:
        assert pickle.loads(pickle.dumps(getattr(owner, name))) is getattr(owner, name)


@pytest.mark.parametrize("shift", [0, 3])
def test_several_numbers_and_words_are_still_different_seeds(shift, monkeypatch):
    given: list[Any] = []
    for owner, name in SEEDS:
        monkeypatch.setattr(owner, name, given.append)
    disturbance.shift_seeds(shift)
    given.clear()
    # As torch does in each worker of a data loader.
    for worker in range(2):
        np.random.seed([7, worker])
        random.seed(f"worker {worker}")
    torch.manual_seed(2.0)
    assert len({*map(str, given)}) == 5
    assert shift or given == [[7, 0], "worker 0", [7, 1], "worker 1", 2.0]
