"""The library cut-cross-entropy as a loss: how it is called, by a stand-in in torch, and where it
is refused. The kernel itself needs a GPU."""

import importlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from schemas.errors import Unsupported
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.loss import token_loss_sum
from transformer_core.techniques import cut_cross_entropy
from transformer_core.techniques.cut_cross_entropy import CutCrossEntropy

LOSS = CutCrossEntropy(kind="cut_cross_entropy")


def kernel(e, c, targets, ignore_index, reduction):
    assert e.dtype == c.dtype
    return F.cross_entropy(
        (e @ c.T).float(), targets, ignore_index=ignore_index, reduction=reduction
    )


def drawn():
    labels = torch.randint(1, 31, (2, 5))
    labels[1, 3:] = PAD
    return torch.randn(2, 5, 8), torch.randn(31, 8), labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_loss_of_whole_logits(smoothing, monkeypatch):
    monkeypatch.setattr(cut_cross_entropy, "library", lambda x: kernel)
    hidden, output, labels = drawn()
    loss = LOSS.loss_sum(hidden, output, labels, smoothing, PAD)
    torch.testing.assert_close(loss, token_loss_sum(hidden @ output.T, labels, smoothing))


def test_under_autocast_it_gets_the_format_of_autocast(monkeypatch):
    def of_16_bits(e, c, targets, **more):
        assert e.dtype == c.dtype == torch.bfloat16
        return kernel(e, c, targets, **more)

    monkeypatch.setattr(cut_cross_entropy, "library", lambda x: of_16_bits)
    hidden, output, labels = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        loss = LOSS.loss_sum(hidden, output, labels, 0.1, PAD)
    assert loss.dtype == torch.float32


def test_the_reason_is_said_where_it_cannot_work(monkeypatch):
    with pytest.raises(Unsupported, match=r"cut_cross_entropy .* this run is on a cpu"):
        LOSS.loss_sum(*drawn(), 0.0, PAD)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Unsupported, match="pip install cut-cross-entropy"):
        cut_cross_entropy.library(SimpleNamespace(is_cuda=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_gives_loss_and_gradients_of_whole_logits():
    pytest.importorskip("cut_cross_entropy")
    generator = torch.Generator("cuda").manual_seed(1)
    hidden = torch.randn(4, 64, 128, device="cuda", generator=generator).bfloat16()
    output = (0.1 * torch.randn(500, 128, device="cuda", generator=generator)).bfloat16()
    labels = torch.randint(1, 500, (4, 64), device="cuda", generator=generator)
    labels[:, 50:] = PAD
    found = []
    for whole in (False, True):
        h, w = hidden.clone().requires_grad_(), output.clone().requires_grad_()
        if whole:
            loss = token_loss_sum((h @ w.T).float(), labels, 0.1)
        else:
            loss = LOSS.loss_sum(h, w, labels, 0.1, PAD)
        loss.backward()
        found.append([loss.detach(), h.grad, w.grad])
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=2e-2)
