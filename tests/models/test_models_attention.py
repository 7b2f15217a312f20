"""Attention: what is computed, and that all kinds agree."""

import math

import pytest
import torch

from transformer_core.models.attention import ATTENTIONS, reference_attention

B, H, N, M, K = 2, 3, 4, 5, 8


def tensors(n=N, m=M, dtype=torch.float32):
    torch.manual_seed(0)
    return (
        torch.randn(B, H, n, K, dtype=dtype, requires_grad=True),
        torch.randn(B, H, m, K, dtype=dtype, requires_grad=True),
        torch.randn(B, H, m, K, dtype=dtype, requires_grad=True),
    )


def padding(*lengths, m=M):
    return (torch.arange(m) < torch.tensor(lengths)[:, None])[:, None, None, :]


def by_hand(q, k, v, visible):
    """Attention of one query after the other, over the keys that ``visible(b, i)`` lists."""
    result = torch.zeros(q.shape)
    for b in range(B):
        for h in range(H):
            for i in range(q.size(2)):
                keys = visible(b, i)
                scores = [(q[b, h, i] @ k[b, h, j]).item() / math.sqrt(K) for j in keys]
                total = sum(math.exp(s) for s in scores)
                for s, j in zip(scores, keys, strict=True):
                    result[b, h, i] += math.exp(s) / total * v[b, h, j].detach()
    return result


@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
@pytest.mark.parametrize("case", ["all", "padding", "causal"])
def test_equals_attention_by_hand(kind, case):
    q, k, v = tensors(m=N if case == "causal" else M)
    lengths = (5, 2)
    mask = padding(*lengths) if case == "padding" else None
    visible = {
        "all": lambda b, i: range(M),
        "padding": lambda b, i: range(lengths[b]),
        "causal": lambda b, i: range(i + 1),
    }[case]
    result = ATTENTIONS[kind](q, k, v, mask, case == "causal", 0.0)
    torch.testing.assert_close(result, by_hand(q, k, v, visible), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(set(ATTENTIONS) - {"reference"}))
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_the_reference(kind, causal):
    def gradients(attention):
        inputs = tensors(n=M)
        mask = None if causal else padding(5, 3)
        attention(*inputs, mask, causal, 0.0).square().sum().backward()
        return [x.grad for x in inputs]

    for ours, expected in zip(
        gradients(ATTENTIONS[kind]), gradients(reference_attention), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_hidden_rows_are_finite_in_every_type(kind, dtype, dropout):
    inputs = tensors(dtype=dtype)
    result = ATTENTIONS[kind](*inputs, padding(5, 0), False, dropout)
    result.float().sum().backward()
    assert result.dtype == dtype
    assert result.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
def test_a_hidden_key_weighs_nothing_in_fp16(kind):
    q, k, v = tensors(dtype=torch.float16)
    with torch.no_grad():
        # As large as fp16 allows: the fill must stay below every score.
        k[:, :, 2:] *= 4_000
        v[:, :, 2:] = 60_000
    result = ATTENTIONS[kind](q, k, v, padding(2, 2), False, 0.0)
    expected = ATTENTIONS[kind](q, k[:, :, :2], v[:, :, :2], None, False, 0.0)
    torch.testing.assert_close(result, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hidden_rows_are_finite_on_cuda(kind, dtype):
    inputs = [x.detach().to("cuda", dtype).requires_grad_() for x in tensors()]
    result = ATTENTIONS[kind](*inputs, padding(5, 0).cuda(), False, 0.0)
    result.float().sum().backward()
    assert result.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
def test_dropout_drops_attention_weights(kind):
    # With the identity as values the result is the matrix of weights itself.
    torch.manual_seed(0)
    q = torch.zeros(1, 1, 500, 64)
    k = torch.zeros(1, 1, 64, 64)
    v = torch.eye(64)[None, None]
    weights = ATTENTIONS[kind](q, k, v, None, False, 0.25)
    assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.015)
    kept = weights[weights != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 64 / 0.75))
