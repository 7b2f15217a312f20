"""Dropout."""

import pytest
import torch

from schemas.config.model import FusedDropout, SharedDraws, TorchDropout
from transformer_core.models.dropout import DROPOUTS, Dropout, dropout


@pytest.mark.parametrize("kind", DROPOUTS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_with_probability_p_and_keeps_the_mean(kind, p):
    torch.manual_seed(0)
    n = 400_000
    result = DROPOUTS[kind](torch.ones(n), p)
    share = (result == 0).float().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)
    assert result.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]


def test_neighbours_are_independent():
    # Four elements share a draw: no place may be biased or depend on another.
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(100_000, 4), 0.3) == 0).float()
    torch.testing.assert_close(dropped.mean(0), torch.full((4,), 0.3), rtol=0, atol=0.008)
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


def test_gradient_passes_where_the_value_passed():
    x = torch.full((1000,), 2.0, requires_grad=True)
    y = dropout(x, 0.25)
    y.sum().backward()
    torch.testing.assert_close(x.grad * 2.0, y.detach())


def test_the_schema_chooses():
    torch.manual_seed(2)
    ours = Dropout(0.5, TorchDropout(kind="torch")).train()(torch.ones(100))
    torch.manual_seed(2)
    assert torch.equal(ours, torch.nn.functional.dropout(torch.ones(100), 0.5))


FUSED = FusedDropout(kind="fused")


@pytest.mark.parametrize("method", [SharedDraws(), FUSED], ids=lambda method: method.kind)
def test_nothing_happens_in_evaluation_or_without_probability(method):
    x = torch.tensor([-1.0, 2.0])
    for layer in (Dropout(0.5, method).eval(), Dropout(0.0, method).train()):
        assert torch.equal(layer(x), x)
        assert layer.added(x, x).tolist() == [-2.0, 4.0]
        assert layer.of_relu(x).tolist() == [0.0, 2.0]
    assert (Dropout(0.5, method).train()(torch.randn(100)) == 0).any()


# Small, and large enough for several threads; odd, so that the pieces are not equal.
@pytest.mark.parametrize("size", [8, 3 * 2**16 + 1])
@pytest.mark.parametrize("beside", ["residual", "relu"])
def test_a_fused_loop_and_its_gradient_are_those_of_one_mask(size, beside):
    torch.manual_seed(0)
    layer, p = Dropout(0.25, FUSED), 0.25
    x = (torch.randn(size) + 3 * (beside == "residual")).requires_grad_()
    residual = torch.randn(size, requires_grad=True)
    gradient = torch.randn(size)
    if beside == "relu":
        result = layer.of_relu(x)
        passed, may_pass = result.detach(), x.detach() > 0
        assert not passed[~may_pass].any()
    else:
        result = layer.added(residual, x)
        passed, may_pass = (result - residual).detach(), torch.ones(size, dtype=torch.bool)
    kept = passed != 0
    expected = torch.where(kept, x.detach() / (1 - p), 0.0)
    torch.testing.assert_close(passed, expected, rtol=1e-4, atol=1e-5)
    result.backward(gradient)
    torch.testing.assert_close(x.grad, torch.where(kept, gradient / (1 - p), 0.0))
    if beside == "residual":
        assert torch.equal(residual.grad, gradient)
    if size > 100:
        assert kept[may_pass].float().mean().item() == pytest.approx(1 - p, abs=0.01)


def test_masks_of_two_calls_are_not_shifted_copies():
    torch.manual_seed(0)
    layer = Dropout(0.5, FUSED)
    first, second = ((layer(torch.ones(20_000)) != 0).float() - 0.5 for _ in range(2))
    # A shifted copy would exceed the noise of 5 standard errors.
    size = torch.fft.rfft(first, 40_000).conj() * torch.fft.rfft(second, 40_000)
    assert torch.fft.irfft(size).abs().max() < 5.5 * 0.25 * 20_000**0.5


def test_the_seed_decides_the_masks_of_compiled_loops_too():
    def draw(seed):
        torch.manual_seed(seed)
        return Dropout(0.5, FUSED).added(torch.zeros(1000), torch.ones(1000))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_formats_fall_back_to_separate_operations(dtype):
    layer, x = Dropout(0.5, FUSED), torch.ones(1000, dtype=dtype)
    for result in (layer.added(torch.ones_like(x), x) - 1, layer.of_relu(x), layer(x)):
        assert result.dtype == dtype
        assert set(result.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_fused_loops_in_bfloat16_are_those_of_32_bits_rounded(residual):
    torch.manual_seed(0)
    x = torch.randn(1000).to(torch.bfloat16)
    beside = torch.randn(1000).to(residual)
    layer, gradient = Dropout(0.25, FUSED), torch.randn(1000)

    def of(x, beside, dtype):
        found = []
        for function in (layer, layer.of_relu, lambda y: layer.added(beside, y)):
            mine = x.detach().clone().requires_grad_()
            torch.manual_seed(1)
            result = function(mine)
            result.backward(gradient.to(result.dtype))
            found += [result.detach(), mine.grad]
        return [each.to(dtype) for each in found]

    halves = of(x, beside, torch.float32)
    wholes = of(x.float(), beside.float(), torch.float32)
    for half, whole in zip(halves, wholes, strict=True):
        assert torch.equal(half == 0, whole == 0)
        torch.testing.assert_close(half, whole, rtol=2**-7, atol=1e-6)
    assert (halves[0] == 0).float().mean() > 0.2
