"""Dropout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.model.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_with_probability_p_and_keeps_the_mean(p):
    torch.manual_seed(0)
    n = 400_000
    result = dropout(torch.ones(n), p)
    share = (result == 0).float().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)
    assert result.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]


def test_neighbours_are_independent():
    # Four elements share one draw: none of the four places may be biased or tied to another.
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(100_000, 4), 0.3) == 0).float()
    torch.testing.assert_close(dropped.mean(0), torch.full((4,), 0.3), rtol=0, atol=0.008)
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


@given(shape=st.lists(st.integers(0, 5), max_size=3))
def test_keeps_shape_and_type(shape):
    x = torch.ones(shape, dtype=torch.bfloat16)
    assert dropout(x, 0.5).shape == x.shape
    assert dropout(x, 0.5).dtype == x.dtype


def test_gradient_passes_where_the_value_passed():
    x = torch.full((1000,), 2.0, requires_grad=True)
    y = dropout(x, 0.25)
    y.sum().backward()
    torch.testing.assert_close(x.grad * 2.0, y.detach())


def test_seed_decides():
    def draw(seed):
        torch.manual_seed(seed)
        return dropout(torch.ones(1000), 0.5)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_nothing_happens_in_evaluation_or_without_probability():
    x = torch.randn(100)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert (Dropout(0.5).train()(x) == 0).any()
