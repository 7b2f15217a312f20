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
from transformer_core.models.loss import chunked_token_loss_sum, token_loss_sum


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
    logits, labels = draw(b, t, v, seed)
    loss = token_loss_sum(logits, labels, smoothing)
    (gradient,) = torch.autograd.grad(loss * upstream, logits)
    expected = expected_loss(logits, labels, smoothing)
    (expected_gradient,) = torch.autograd.grad(expected * upstream, logits)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_slices_do_not_matter(monkeypatch, rows):
    monkeypatch.setattr(loss_module, "_rows_per_slice", lambda logits: rows)
    logits, labels = draw(3, 5, 11, seed=1)
    loss = token_loss_sum(logits, labels, 0.1)
    loss.backward()
    reference = logits.detach().clone().requires_grad_()
    expected = expected_loss(reference, labels, 0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits.grad, reference.grad, rtol=1e-4, atol=1e-6)


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
    logits, labels = draw(2, 4, 10, seed=3, scale=1e4)
    loss = token_loss_sum(logits, labels, 0.1)
    loss.backward()
    torch.testing.assert_close(loss, expected_loss(logits, labels, 0.1), rtol=1e-5, atol=1e-2)
    assert logits.grad.isfinite().all()


def test_padding_counts_nothing():
    logits, labels = draw(2, 4, 10, seed=4)
    labels[:, 2:] = PAD
    loss = token_loss_sum(logits, labels, 0.1)
    loss.backward()
    assert not logits.grad[:, 2:].any()
    alone = token_loss_sum(logits[:, :2], labels[:, :2], 0.1)
    torch.testing.assert_close(loss, alone)
    assert token_loss_sum(logits, torch.full_like(labels, PAD), 0.1).item() == 0.0


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
    """Summed up in bfloat16, 64 small parts would be lost beside a large one."""
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
