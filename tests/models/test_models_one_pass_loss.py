"""The one-pass loss against the loss of whole logits."""

import sys

import pytest
import torch
import torch.nn.functional as F

from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.models import loss as one_pass_loss
from transformer_core.models.loss import one_pass_loss_sum, token_loss_sum


def draw(v=11, scale=1.0):
    torch.manual_seed(0)
    hidden, output = torch.randn(3, 4, 8) * scale, torch.randn(v, 8)
    labels = torch.randint(1, v, (3, 4))
    labels[1, 2:] = PAD
    return hidden.requires_grad_(), output.requires_grad_(), labels


def whole(hidden, output, labels, smoothing):
    return token_loss_sum(F.linear(hidden, output), labels, smoothing)


def results(loss, scale=1.0, autocast=None):
    hidden, output, labels = draw(scale=scale)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        value = loss(hidden, output, labels, 0.1)
    value.backward()
    return value.detach(), hidden.grad, output.grad


@pytest.mark.parametrize("elements", [1, 40, 2**20])
def test_chunks_of_any_size_compute_the_same(monkeypatch, elements):
    monkeypatch.setattr(one_pass_loss, "_CPU_ELEMENTS", elements)
    for ours, expected in zip(results(one_pass_loss_sum), results(whole), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_products_and_nothing_else(dtype):
    value, *gradients = results(one_pass_loss_sum, autocast=dtype)
    exact, *expected = results(whole)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, exact, rtol=1e-2, atol=1e-2)
    for ours, reference in zip(gradients, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - reference).norm() < 0.02 * reference.norm()


def test_large_logits_do_not_overflow():
    value, *gradients = results(one_pass_loss_sum, scale=1e4)
    exact, *expected = results(whole, scale=1e4)
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-2)
    for ours, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1.0)


def test_rows_of_padding_are_masked_where_they_are_computed(monkeypatch):
    """As on a GPU, where it costs more to leave them out."""
    monkeypatch.setattr(one_pass_loss, "places", lambda real: torch.arange(len(real)))
    monkeypatch.setattr(one_pass_loss, "_PADDING_LEFT_OUT", ())
    for ours, expected in zip(results(one_pass_loss_sum), results(whole), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_on_cuda():
    inputs = draw()
    expected = [x.detach() for x in torch.autograd.grad(whole(*inputs, 0.1), inputs[:2])]
    there = [x.detach().cuda() for x in inputs]
    there = [x.requires_grad_(x.is_floating_point()) for x in there]
    ours = torch.autograd.grad(one_pass_loss_sum(*there, 0.1), there[:2])
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def for_a_gpu(monkeypatch):
    """The way of GPUs, by a kernel that stands for Triton's; its calls."""
    calls = []

    def kernel(logits, *arguments):
        calls.append(logits.shape)
        loss, gradient = one_pass_loss._loss_and_gradient(logits, *arguments)
        return loss, logits.copy_(gradient)

    monkeypatch.setattr(one_pass_loss, "device_kind", lambda x: "cuda")
    monkeypatch.setattr(one_pass_loss, "_why_no_kernel", lambda device: None)
    monkeypatch.setattr(one_pass_loss, "_in_one_kernel", kernel)
    return calls


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_a_kernel_that_writes_over_the_logits(for_a_gpu, autocast):
    exact, *expected = results(whole)
    value, *gradients = results(one_pass_loss_sum, autocast=autocast)
    assert for_a_gpu
    torch.testing.assert_close(value, exact, rtol=1e-2, atol=1e-2)
    for ours, reference in zip(gradients, expected, strict=True):
        assert (ours - reference).norm() < 0.02 * reference.norm()


def test_operators_that_are_seen_do_not_change_the_kernel(for_a_gpu):
    with FirstStep() as kernels:
        kernels.begin()
        results(one_pass_loss_sum)
    assert for_a_gpu


def test_a_host_without_a_compiler_computes_step_by_step(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "transformer_core.techniques.gpu_kernels", None)
    monkeypatch.setattr(one_pass_loss.log, "propagate", True)
    one_pass_loss._why_no_kernel.cache_clear()
    reasons = {one_pass_loss._why_no_kernel(torch.device("cpu")) for _ in range(2)}
    one_pass_loss._why_no_kernel.cache_clear()
    assert None not in reasons
    assert caplog.text.count("step by step") == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("words", [7, 64, 1001])
def test_one_loop_in_bfloat16_is_that_step_by_step_but_for_rounding(smoothing, words):
    torch.manual_seed(0)
    logits = (5 * torch.randn(40, words)).to(torch.bfloat16)
    labels = torch.randint(0, words, (40,))
    wide = one_pass_loss._loss_and_gradient(logits.double(), labels, None, smoothing, 1.0)
    losses, gradient = one_pass_loss._in_one_loop(logits.clone(), labels, None, smoothing, 1.0)
    torch.testing.assert_close(losses, wide[0].float(), rtol=1e-5, atol=1e-5)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float(), wide[1].float(), rtol=2**-8, atol=1e-6)


def test_a_logit_that_is_no_number_is_in_the_loss():
    logits = torch.zeros(2, 40, dtype=torch.bfloat16)
    logits[1, 3] = torch.nan
    losses, _ = one_pass_loss._in_one_loop(logits, torch.tensor([1, 2]), None, 0.1, 1.0)
    assert losses.isnan().tolist() == [False, True]
