"""The one-pass loss in chunks, formats and by kernels, against the loss of whole logits."""

import sys

import pytest
import torch

from tests.models.test_models_head_losses import drawn, value_and_gradients, whole
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.models import loss as one_pass_loss
from transformer_core.models.loss import one_pass_loss_sum


@pytest.mark.parametrize("elements", [1, 170])
def test_chunks_of_any_size_compute_the_same(monkeypatch, elements):
    monkeypatch.setattr(one_pass_loss, "_CPU_ELEMENTS", elements)
    found, expected = (value_and_gradients(loss, 0.1) for loss in (one_pass_loss_sum, whole))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def assert_rounded(autocast):
    """Checks that only products are rounded to the format of autocast."""
    value, *gradients = value_and_gradients(one_pass_loss_sum, 0.1, autocast=autocast)
    exact, *expected = value_and_gradients(whole, 0.1)
    torch.testing.assert_close(value, exact, rtol=1e-2, atol=1e-2)
    for ours, reference in zip(gradients, expected, strict=True):
        assert ours.dtype == torch.float32
        error = 1e-5 if autocast is None else 0.02
        assert (ours - reference).norm() < error * reference.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_products_and_nothing_else(dtype):
    assert_rounded(dtype)


@pytest.mark.gpu
def test_on_cuda():
    inputs = drawn()
    expected = [x.detach() for x in torch.autograd.grad(whole(*inputs, 0.1), inputs[:2])]
    there = [x.detach().cuda() for x in inputs]
    there = [x.requires_grad_(x.is_floating_point()) for x in there]
    ours = torch.autograd.grad(one_pass_loss_sum(*there, 0.1), there[:2])
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def for_a_gpu(monkeypatch):
    """Makes losses compute as on a GPU, with a stand-in for Triton's kernel; returns its calls."""
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
    """On a GPU the kernel masks padding, since skipping it would cost more."""
    assert_rounded(autocast)
    assert for_a_gpu


def test_observed_operators_do_not_change_the_kernel(for_a_gpu):
    with FirstStep() as kernels:
        kernels.begin()
        value_and_gradients(one_pass_loss_sum, 0.1)
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
def test_one_loop_in_bfloat16_only_differs_by_rounding(smoothing, words):
    torch.manual_seed(0)
    logits = (5 * torch.randn(40, words)).to(torch.bfloat16)
    labels = torch.randint(0, words, (40,))
    wide = one_pass_loss._loss_and_gradient(logits.double(), labels, None, smoothing, 1.0)
    losses, gradient = one_pass_loss._in_one_loop(logits.clone(), labels, None, smoothing, 1.0)
    torch.testing.assert_close(losses, wide[0].float(), rtol=1e-5, atol=1e-5)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float(), wide[1].float(), rtol=2**-8, atol=1e-6)


def test_a_nan_logit_makes_the_loss_nan():
    logits = torch.zeros(2, 40, dtype=torch.bfloat16)
    logits[1, 3] = torch.nan
    losses, _ = one_pass_loss._in_one_loop(logits, torch.tensor([1, 2]), None, 0.1, 1.0)
    assert losses.isnan().tolist() == [False, True]
