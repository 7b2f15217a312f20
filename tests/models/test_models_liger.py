"""Liger's kernels: how they are called, by stand-ins in torch, and where they are refused."""

import importlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from schemas.config.model import DecoderOnly
from schemas.errors import Unsupported
from transformer_core.models.registry import build_model
from transformer_core.techniques import liger

SIZES = {"layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}


def rope(q, k, cos, sin):
    """As the transformers library turns Llama's heads; cos and sin [b, n, k]."""

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    return turned(q), turned(k)


STANDINS = SimpleNamespace(
    liger_rms_norm=lambda x, weight, eps, in_place: F.rms_norm(x, weight.shape, weight, eps),
    liger_swiglu=lambda gate, value: F.silu(gate) * value,
    liger_rope=rope,
)


def test_a_model_of_its_kernels_is_the_same_model(monkeypatch):
    monkeypatch.setattr(liger, "library", lambda field, x: STANDINS)
    tokens = torch.randint(4, 31, (3, 8), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0] * 3 + [1] * 5] * 3)
    found = []
    for kernels in ("torch", "liger"):
        torch.manual_seed(1)
        model = build_model(DecoderOnly(**SIZES, kv_heads=1, kernels=kernels), 31)
        found.append([model.logits(tokens, segments), model.logits(tokens)])
    torch.testing.assert_close(found[1], found[0])


def test_the_reason_is_said_where_it_cannot_work(monkeypatch):
    with pytest.raises(
        Unsupported, match=r"model.kernels: liger .* for GPUs; this run is on a cpu"
    ):
        liger.swiglu(torch.ones(2, 4))

    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match="pip install liger-kernel"):
        liger.library("training.loss: liger", SimpleNamespace(is_cuda=True))


@pytest.mark.gpu
def test_its_kernels_compute_what_torch_does():
    pytest.importorskip("liger_kernel")
    tokens = torch.randint(4, 31, (3, 8), device="cuda")
    found = []
    for kernels in ("torch", "liger"):
        torch.manual_seed(1)
        spec = DecoderOnly(**(SIZES | {"d_model": 64, "d_ff": 128}), kernels=kernels)
        model = build_model(spec, 31).cuda()
        loss = model(tokens, tokens.roll(-1))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
