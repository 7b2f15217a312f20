"""Mask, softmax and dropout in one compiled loop, beside the same step by step."""

import pytest
import torch

from schemas.config.model import FusedSoftmaxAttention
from transformer_core.models.attention import build_attention, reference_attention
from transformer_core.models.dropout import attention_weights

B, H, N = 3, 2, 5
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def masks(m):
    lengths = torch.tensor([m, 1, m - 1])
    padding = (torch.arange(m) < lengths[:, None])[:, None, None, :]
    each = torch.rand(B, 1, N, m) > 0.4
    each[..., 0] = True
    return {"none": None, "padding": padding, "each": each, "blocks": padding.transpose(0, 1)}


def scores_of(m, dtype, shape=(B, H, N)):
    torch.manual_seed(0)
    return (4 * torch.randn(*shape, m)).to(dtype)


def step_by_step(scores, mask, causal, kept=None, p=0.0):
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    wide = scores.double()
    if mask is not None:
        wide = wide.masked_fill(~mask, -1e30)
    weights = wide.softmax(-1)
    return weights if kept is None else weights * kept / (1 - p)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("m", [1, 5, 16, 33])
@pytest.mark.parametrize("case", ["none", "padding", "each", "blocks", "causal"])
def test_weights_and_gradients_are_those_of_the_mask_that_is_drawn(dtype, m, case):
    p = 0.25
    shape = (H, B, N) if case == "blocks" else (B, H, N)
    scores = scores_of(m, dtype, shape).requires_grad_()
    mask = masks(m).get(case)
    torch.manual_seed(3)
    weights = attention_weights(scores * 1, mask, case == "causal", p)
    # What is not 0 was kept. A probability may be 0 too, which then makes no difference.
    exact = scores.detach().double().requires_grad_()
    expected = step_by_step(exact, mask, case == "causal", (weights != 0).double(), p)
    gradient = torch.randn(weights.shape).to(dtype)
    weights.backward(gradient)
    expected.backward(gradient.double())
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(weights.double(), expected, rtol=bound, atol=bound)
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=bound, atol=bound)


def test_every_weight_is_dropped_with_the_probability():
    n, p = 400, 0.1
    weights = attention_weights(torch.zeros(1, 4, n, n), None, False, p)
    share = (weights == 0).double().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / (4 * n * n)) ** 0.5)
    assert weights.max().item() == pytest.approx(1 / n / (1 - p))


def test_pieces_of_several_threads_are_one():
    big = scores_of(64, torch.float32, (8, 4, 64))
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            torch.manual_seed(1)
            found.append(attention_weights(big.clone(), None, True, 0.1))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_a_query_without_a_key_sees_nothing():
    hidden = torch.zeros(B, 1, 1, 4, dtype=torch.bool)
    scores = scores_of(4, torch.float32).requires_grad_()
    weights = attention_weights(scores * 1, hidden, False, 0.1)
    weights.sum().backward()
    assert not weights.any()
    assert not scores.grad.any()


def test_a_score_that_is_no_number_is_not_hidden():
    scores = scores_of(20, torch.float32)
    scores[0, 0, 0, 3] = torch.nan
    assert attention_weights(scores, None, False, 0.1)[0, 0, 0].isnan().any()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_is_the_reference_where_next_to_nothing_is_dropped(dtype):
    attend = build_attention(FusedSoftmaxAttention(kind="fused_softmax"))
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 7, 8).to(dtype) for _ in range(3))
    ours = attend(q, k, v, None, True, 1e-9)
    theirs = reference_attention(q, k, v, None, True, 0.0)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_reference():
    attend = build_attention(FusedSoftmaxAttention(kind="fused_softmax"))
    q, k, v = (torch.randn(2, 2, 7, 8, device="cuda") for _ in range(3))
    torch.manual_seed(0)
    ours = attend(q, k, v, None, True, 0.5)
    torch.manual_seed(0)
    assert torch.equal(ours, reference_attention(q, k, v, None, True, 0.5))
