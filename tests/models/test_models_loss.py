"""The loss against torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models import loss as loss_module
from transformer_core.models.loss import chunked_token_loss_sum, kl_divergence_sum, token_loss_sum


def expected_loss(logits, labels, smoothing):
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )


def draw(b, t, v, seed, dtype=torch.float32, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(b, t, v, generator=generator) * scale).to(dtype).requires_grad_()
    labels = torch.randint(1, v, (b, t), generator=generator)
    labels[torch.rand(b, t, generator=generator) < 0.3] = PAD
    return logits, labels


def assert_equals_cross_entropy(logits, labels, smoothing, upstream=1.0, close=1e-4):
    loss, expected = (f(logits, labels, smoothing) for f in (token_loss_sum, expected_loss))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=close)
    gradients = [torch.autograd.grad(each * upstream, logits)[0] for each in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    b=st.integers(1, 4),
    t=st.integers(1, 5),
    v=st.integers(2, 30),
    seed=st.integers(0, 999),
    smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    upstream=st.sampled_from([1.0, -0.25]),
)
def test_value_and_gradient_equal_cross_entropy(b, t, v, seed, smoothing, upstream):
    assert_equals_cross_entropy(*draw(b, t, v, seed), smoothing, upstream)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_slices_do_not_matter(monkeypatch, rows):
    monkeypatch.setattr(loss_module, "_rows_per_slice", lambda logits: rows)
    assert_equals_cross_entropy(*draw(3, 5, 11, seed=1), 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_give_a_float32_loss(dtype):
    logits, labels = draw(2, 4, 50, seed=2, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss_sum(logits, labels, 0.1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(loss, expected_loss(logits, labels, 0.1), rtol=1e-5, atol=1e-4)


def test_large_logits_do_not_overflow():
    assert_equals_cross_entropy(*draw(2, 4, 10, seed=3, scale=1e4), 0.1, close=1e-2)


def test_the_published_loss_by_hand():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 7)
    labels = torch.tensor([[3, 4, PAD], [6, PAD, PAD]])
    expected = 0.0
    for b, t in ((0, 0), (0, 1), (1, 0)):
        log_p = logits[b, t].log_softmax(-1)
        for token in range(7):
            if token != PAD:
                share = 0.9 if token == labels[b, t] else 0.1 / 5
                expected -= share * log_p[token].item()
    torch.testing.assert_close(kl_divergence_sum(logits, labels, 0.1).item(), expected)


class LargestRows(TorchDispatchMode):
    """The most rows of any tensor whose last dimension is ``v``."""

    def __init__(self, v):
        super().__init__()
        self.v = v
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.size(-1) == self.v:
                self.rows = max(self.rows, tensor.numel() // self.v)
        return result


def test_chunks_never_hold_the_logits_of_more_tokens_than_they_may():
    hidden, output = torch.randn(6, 10, 5, requires_grad=True), torch.randn(97, 5)
    labels = torch.randint(0, 97, (6, 10))
    with LargestRows(97) as seen:
        chunked_token_loss_sum(hidden, output, labels, 0.1, 7).backward()
    assert seen.rows == 7
    with LargestRows(97) as seen:
        token_loss_sum(F.linear(hidden, output), labels, 0.1).backward()
    assert seen.rows == 60


def test_chunks_sum_their_gradients_in_the_format_of_the_weights():
    """A sum in bfloat16 would lose 64 small parts next to a large one."""
    torch.manual_seed(0)
    hidden, output = torch.randn(1, 64, 8), torch.randn(12, 8)
    hidden[0, 0] *= 100
    labels = torch.randint(1, 12, (1, 64))

    def gradient(rows):
        weight = output.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            chunked_token_loss_sum(hidden, weight, labels, 0.0, rows).backward()
        return weight.grad

    exact = output.double().requires_grad_()
    F.cross_entropy(hidden[0].double() @ exact.T, labels[0], reduction="sum").backward()

    def error(found):
        return float((found - exact.grad).norm() / exact.grad.norm())

    assert error(gradient(1)) < 1.5 * error(gradient(64))
