"""Dropout, alone and in one compiled loop with what is beside it: a sum, ReLU, or mask and softmax."""

import pytest
import torch

from schemas.config.model import FusedDropout, SharedDraws, TorchDropout
from transformer_core.models.attention import fused_softmax_attention, reference_attention
from transformer_core.models.dropout import DROPOUTS, Dropout, attention_weights, dropout


@pytest.mark.parametrize("kind", DROPOUTS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_value_and_gradient_drop_with_probability_p_and_keep_the_mean(kind, p):
    torch.manual_seed(0)
    n = 400_000
    x = torch.ones(n, requires_grad=True)
    result = DROPOUTS[kind](x, p)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())
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


B, H, N = 3, 2, 5
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def masks(m):
    lengths = torch.tensor([m, 1, m - 1])
    padding = (torch.arange(m) < lengths[:, None])[:, None, None, :]
    each = torch.rand(B, 1, N, m) > 0.4
    each[..., 0] = True
    causal = torch.ones(N, m, dtype=torch.bool).tril()
    return {"padding": padding, "each": each, "blocks": padding.transpose(0, 1), "causal": causal}


def scores_of(m, dtype, shape=(B, H, N)):
    torch.manual_seed(0)
    return (4 * torch.randn(*shape, m)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("m", [1, 16, 33])
@pytest.mark.parametrize("case", ["none", "padding", "each", "blocks", "causal"])
def test_weights_and_gradients_are_those_of_the_mask_that_is_drawn(dtype, m, case):
    p = 0.25
    shape = (H, B, N) if case == "blocks" else (B, H, N)
    scores = scores_of(m, dtype, shape).requires_grad_()
    mask, causal = masks(m).get(case), case == "causal"
    torch.manual_seed(3)
    weights = attention_weights(scores * 1, None if causal else mask, causal, p)
    exact = scores.detach().double().requires_grad_()
    hidden = torch.tensor(False) if mask is None else ~mask
    # Elements other than 0 were kept. A probability of 0 makes no difference.
    expected = exact.masked_fill(hidden, -1e30).softmax(-1) * (weights != 0) / (1 - p)
    gradient = torch.randn(weights.shape).to(dtype)
    weights.backward(gradient)
    expected.backward(gradient.double())
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(weights.double(), expected, rtol=bound, atol=bound)
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=bound, atol=bound)


def test_pieces_of_several_threads_are_one(monkeypatch):
    big = scores_of(64, torch.float32, (8, 4, 64))
    found = []
    for number in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        torch.manual_seed(1)
        found.append(attention_weights(big.clone(), None, True, 0.1))
    assert torch.equal(*found)


def test_a_query_without_a_key_sees_nothing():
    hidden = torch.zeros(B, 1, 1, 4, dtype=torch.bool)
    scores = scores_of(4, torch.float32).requires_grad_()
    weights = attention_weights(scores * 1, hidden, False, 0.1)
    weights.sum().backward()
    assert not weights.any()
    assert not scores.grad.any()


def test_a_nan_is_not_hidden():
    dropout = Dropout(1e-9, FusedDropout(kind="fused"))
    assert dropout.of_relu(torch.full((50,), torch.nan)).isnan().all()
    scores = scores_of(20, torch.float32)
    scores[0, 0, 0, 3] = torch.nan
    assert attention_weights(scores, None, False, 0.1)[0, 0, 0].isnan().any()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_equals_the_reference_with_almost_no_dropout(dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 7, 8).to(dtype) for _ in range(3))
    ours = fused_softmax_attention(q, k, v, None, True, 1e-9)
    theirs = reference_attention(q, k, v, None, True, 0.0)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.gpu
def test_on_a_gpu_attention_equals_the_reference():
    q, k, v = (torch.randn(2, 2, 7, 8, device="cuda") for _ in range(3))
    found = []
    for attend in (fused_softmax_attention, reference_attention):
        torch.manual_seed(0)
        found.append(attend(q, k, v, None, True, 0.5))
    assert torch.equal(*found)
