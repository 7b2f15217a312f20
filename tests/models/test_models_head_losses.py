"""Losses that never hold all logits equal the loss of whole logits; stand-ins in torch replace those
of libraries, which are refused if they cannot work. The one-pass loss also in chunks, formats and by
kernels."""

import importlib
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from schemas.errors import Unsupported
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.machine.step_kernels import FirstStep
from transformer_core.models import loss as one_pass_loss
from transformer_core.models.loss import chunked_token_loss_sum, one_pass_loss_sum, token_loss_sum
from transformer_core.techniques import cut_cross_entropy, liger
from transformer_core.techniques.cut_cross_entropy import CutCrossEntropy
from transformer_core.techniques.liger import LigerLoss
from transformer_core.techniques.linear_cross_entropy import LinearCrossEntropy

NEEDS_TORCH = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="needs torch 2.13 or newer"
)


def own(spec):
    return lambda h, w, y, smoothing: spec.loss_sum(h, w, y, smoothing, PAD)


LINEAR = own(LinearCrossEntropy(kind="linear_cross_entropy"))
CUT = own(CutCrossEntropy(kind="cut_cross_entropy"))
HEADS = {
    "chunked": lambda h, w, y, smoothing: chunked_token_loss_sum(h, w, y, smoothing, 5),
    "one_pass": one_pass_loss_sum,
    "linear_cross_entropy": LINEAR,
    "cut_cross_entropy": CUT,
    "liger": own(LigerLoss(kind="liger")),
}
heads = pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=NEEDS_TORCH if head is LINEAR else (), id=name)
        for name, head in HEADS.items()
    ],
)


def cut_kernel(e, c, targets, ignore_index, reduction):
    assert e.dtype == c.dtype
    return F.cross_entropy(
        (e @ c.T).float(), targets, ignore_index=ignore_index, reduction=reduction
    )


def liger_kernel(x, weight, labels, accum_dtype, **options):
    return F.cross_entropy(x @ weight.T, labels, **options)


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.setattr(cut_cross_entropy, "library", lambda x: cut_kernel)
    library = SimpleNamespace(liger_fused_linear_cross_entropy=liger_kernel)
    monkeypatch.setattr(liger, "library", lambda field, x: library)


def drawn(b=3, t=40, d=16, v=50, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    hidden = (torch.randn(b, t, d, generator=generator) * scale).requires_grad_()
    output = torch.randn(v, d, generator=generator).requires_grad_()
    labels = torch.randint(1, v, (b, t), generator=generator)
    labels[torch.rand(b, t, generator=generator) < 0.3] = PAD
    return hidden, output, labels


def whole(hidden, output, labels, smoothing):
    return token_loss_sum(F.linear(hidden, output), labels, smoothing)


def value_and_gradients(loss, smoothing, scale=1.0, autocast=None):
    hidden, output, labels = drawn(scale=scale)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        value = loss(hidden, output, labels, smoothing)
    (-0.5 * value).backward()
    return [value.detach(), hidden.grad, output.grad]


@heads
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("smoothing", "scale", "close"),
    [(0.0, 1.0, 1e-4), (0.1, 1.0, 1e-4), (1.0, 1.0, 1e-4), (0.1, 1e4, 1.0)],
    ids=["plain", "smoothed", "all_smoothed", "large_logits"],
)
def test_value_and_gradients_are_those_of_whole_logits(head, smoothing, scale, close):
    found, expected = (value_and_gradients(loss, smoothing, scale) for loss in (head, whole))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=close)


@heads
@pytest.mark.usefixtures("stand_ins")
def test_padding_does_not_count_even_in_a_batch_of_padding(head):
    hidden, output, labels = drawn()
    loss = head(hidden, output, torch.full_like(labels, PAD), 0.1)
    loss.backward()
    assert loss == 0
    assert not hidden.grad.any()
    assert not output.grad.any()


@heads
@pytest.mark.usefixtures("stand_ins")
def test_without_gradients_and_on_tensors_without_memory(head):
    hidden, output, labels = drawn()
    with torch.no_grad():
        torch.testing.assert_close(
            head(hidden, output, labels, 0.1), whole(hidden, output, labels, 0.1)
        )
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden, output, labels = (torch.empty_like(x) for x in (hidden, output, labels))
        loss = head(hidden.requires_grad_(), output.requires_grad_(), labels, 0.1)
        loss.backward()
        assert loss.shape == ()
        assert hidden.grad.shape == hidden.shape


def test_under_autocast_cut_cross_entropy_gets_the_format_of_autocast(monkeypatch):
    def of_16_bits(e, c, targets, **more):
        assert e.dtype == torch.bfloat16
        return cut_kernel(e, c, targets, **more)

    monkeypatch.setattr(cut_cross_entropy, "library", lambda x: of_16_bits)
    with torch.autocast("cpu", torch.bfloat16):
        loss = CUT(*drawn(), 0.1)
    assert loss.dtype == torch.float32


def test_a_library_that_cannot_work_is_named_with_the_reason(monkeypatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    with pytest.raises(Unsupported, match=r"needs torch 2\.13 or newer: use one_pass"):
        LINEAR(*drawn(), 0.1)
    with pytest.raises(Unsupported, match=r"cut_cross_entropy .* this run is on a cpu"):
        CUT(*drawn(), 0.0)
    with pytest.raises(Unsupported, match=r"model.kernels: liger .* for GPUs; .* on a cpu"):
        liger.swiglu(torch.ones(2, 4))

    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match="pip install cut-cross-entropy"):
        cut_cross_entropy.library(SimpleNamespace(is_cuda=True))
    with pytest.raises(Unsupported, match="pip install liger-kernel"):
        liger.library("training.loss: liger", SimpleNamespace(is_cuda=True))


@pytest.mark.gpu
def test_the_kernel_of_cut_cross_entropy_gives_loss_and_gradients_of_whole_logits():
    pytest.importorskip("cut_cross_entropy")
    found = []
    for loss in (CUT, lambda h, w, y, smoothing: token_loss_sum((h @ w.T).float(), y, smoothing)):
        hidden, output, labels = (x.detach().cuda() for x in drawn(4, 64, 128, 500))
        hidden = hidden.bfloat16().requires_grad_()
        output = (0.1 * output).bfloat16().requires_grad_()
        value = loss(hidden, output, labels, 0.1)
        value.backward()
        found.append([value.detach(), hidden.grad, output.grad])
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_weights_in_16_bits(dtype):
    *weights, labels = drawn()
    found = []
    for loss in (one_pass_loss_sum, whole):
        hidden, output = (x.detach().to(dtype).requires_grad_() for x in weights)
        loss(hidden, output, labels, 0.1).backward()
        found.append([hidden.grad, output.grad])
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)


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


def test_a_frequent_token_does_not_overflow_in_float16(for_a_gpu):
    """On a GPU a chunk has thousands of tokens. An infinite gradient would skip every step, whatever
    the loss scale is, since that comes later."""
    torch.manual_seed(0)
    hidden = (1 + 0.1 * torch.randn(1, 4096, 8)).requires_grad_()
    output = (0.1 * torch.randn(16, 8)).requires_grad_()
    labels = torch.full((1, 4096), 3)
    expected = torch.autograd.grad(whole(hidden, output, labels, 0.1), (hidden, output))
    with torch.autocast("cpu", torch.float16):
        loss = one_pass_loss_sum(hidden, output, labels, 0.1)
    found = torch.autograd.grad(loss, (hidden, output))
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).norm() < 0.02 * reference.norm()
    assert float(expected[1].abs().max()) * one_pass_loss._LIFT > torch.finfo(torch.float16).max


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
