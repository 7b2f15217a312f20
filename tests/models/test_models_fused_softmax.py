"""Mask, softmax and dropout in one compiled loop, compared with separate operations."""

import pytest
import torch

from transformer_core.models.attention import fused_softmax_attention, reference_attention
from transformer_core.models.dropout import attention_weights

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


def test_a_nan_score_is_not_hidden():
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
