"""Products of 8 bits: emulated on a CPU, and refused on devices without them."""

import importlib
from unittest.mock import Mock

import pytest
import torch

from schemas.config.model import DecoderOnly
from schemas.errors import Unsupported
from transformer_core.certify.number_formats import to_fp8
from transformer_core.models.registry import build_model
from transformer_core.parallel.sharded_weights import named_tensors
from transformer_core.techniques.float8 import Float8
from transformer_core.training.precision import build_precision

CPU = torch.device("cpu")


def loss_and_gradients(spec):
    torch.manual_seed(1)
    model = build_model(DecoderOnly(layers=1, d_model=32, d_ff=64, heads=2), 37)
    names = set(named_tensors(model))
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, 37, (3, 7), generator=generator)
    if spec is not None:
        build_precision(spec, CPU).convert(model)
        assert set(named_tensors(model)) == names
    loss = model(tokens, tokens.roll(-1))
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_products_are_rounded_to_8_bits_and_no_more(monkeypatch, scaling):
    pytest.importorskip("torchao.float8")
    monkeypatch.setattr(Float8, "emulated", True)
    exact, right = loss_and_gradients(None)
    loss, gradients = loss_and_gradients(Float8(kind="float8", scaling=scaling))
    assert loss != exact
    torch.testing.assert_close(loss, exact, rtol=0.01, atol=0)
    for name, gradient in gradients.items():
        apart = float((gradient - right[name]).norm() / right[name].norm())
        assert apart < 0.2, name
    maps = [name for name in gradients if "linear" in name or "inner" in name]
    assert maps
    assert all(not torch.allclose(gradients[n], right[n], rtol=1e-3) for n in maps)


def test_the_rounding_that_certificates_allow():
    x = torch.linspace(-3, 3, 999)
    error = (to_fp8(x) - x).abs() / x.abs().clamp(min=0.1)
    assert 2**-5 < error.max() <= 2**-4 + 1e-6


def test_a_device_without_float8_products_is_named(monkeypatch):
    with pytest.raises(Unsupported, match="those of GPUs; this run is on a CPU"):
        build_precision(Float8(kind="float8"), CPU).convert(torch.nn.Linear(16, 16))
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(Unsupported, match=r"mxfp8 needs compute capability 10.0 .*H100 has 9.0"):
        Float8(kind="float8", scaling="mxfp8").convert_maps(torch.nn.Linear(16, 16), cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    with pytest.raises(Unsupported, match="but not for training"):
        Float8(kind="float8", scaling="nvfp4").convert_maps(torch.nn.Linear(16, 16), cuda)

    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match="pip install torchao"):
        Float8(kind="float8").convert_maps(torch.nn.Linear(16, 16), cuda)
