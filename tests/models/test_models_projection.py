"""Projections: all kinds compute the same, in different ways."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.config.model import AnyQkv, Transformer
from transformer_core.models.qkv_projection import (
    PROJECTIONS,
    build_projection,
    canonical_state_dict,
)
from transformer_core.models.registry import build_model

SPECS = {
    "separate": {"kind": "separate"},
    "fused": {"kind": "fused"},
    "batch_outer": {"kind": "layout", "outermost": "batch"},
    "batch_inner": {"kind": "layout", "outermost": "qkv"},
    "streams": {"kind": "streams"},
    "streams_as_published": {"kind": "streams", "device_synchronise": True},
}
KINDS = [name for name, spec in SPECS.items() if spec["kind"] != "streams"]  # on any machine
PARTS = [("query", "key", "value"), ("key", "value"), ("query",)]


def test_every_kind_is_tested():
    assert {spec["kind"] for spec in SPECS.values()} == set(PROJECTIONS)


def build_kind(kind, d_model, heads, parts=PARTS[0]):
    spec = TypeAdapter(AnyQkv).validate_python(SPECS[kind])
    return build_projection(spec, d_model, heads, parts)


def results(projection, x, dtype=torch.float32):
    """Heads in 32 bits, and the gradients of x and of the weight of each part."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        heads = projection(x)
    sum((i + 1) * part.float().square().sum() for i, part in enumerate(heads)).backward()
    with torch.no_grad():  # write gradients over weights, so that blocks() finds their parts
        for parameter in projection.parameters():
            parameter.copy_(parameter.grad)
    gradients = [gradient for _, *both in projection.blocks() for gradient in both]
    return [*(part.float() for part in heads), x.grad, *gradients]


@pytest.mark.parametrize(
    ("kind", "device", "dtype"),
    [(kind, "cpu", torch.float32) for kind in KINDS]
    + [
        pytest.param(kind, "cuda", dtype, marks=pytest.mark.gpu)
        for kind in SPECS
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
@pytest.mark.parametrize("parts", PARTS, ids="-".join)
def test_equals_separate_with_copied_weights(kind, device, dtype, parts):
    torch.manual_seed(0)
    separate, other = (build_kind(k, 64, 4, parts).to(device) for k in ("separate", kind))
    with torch.no_grad():
        for (_, w0, b0), (_, w1, b1) in zip(separate.blocks(), other.blocks(), strict=True):
            w1.copy_(w0)
            b1.copy_(b0)
    x = torch.randn(4, 33, 64).to(device)
    found, expected = results(other, x, dtype), results(separate, x, dtype)
    assert [part.shape for part in found[: len(parts)]] == [(4, 4, 33, 16)] * len(parts)
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close * theirs.abs().max().item())


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_initial_weights(kind):
    def model(kind):
        torch.manual_seed(5)
        return build_model(Transformer(d_model=16, d_ff=32, heads=2, qkv=SPECS[kind]), 30)

    state, expected = canonical_state_dict(model(kind)), model("separate").state_dict()
    assert set(state) == set(expected)
    for name in expected:
        assert torch.equal(state[name], expected[name]), name


@pytest.mark.parametrize(("kind", "dimension"), [("batch_outer", 1), ("batch_inner", 0)])
def test_layouts_are_stored_in_their_order(kind, dimension):
    parts = build_kind(kind, 12, 3)(torch.randn(2, 5, 12))
    shape = [2, 3, 5, 4]  # b, h, n, k
    shape.insert(dimension, 3)
    whole = torch.empty(shape)
    for number, part in enumerate(parts):
        assert part.stride() == whole.select(dimension, number).stride()
        assert part.storage_offset() == whole.select(dimension, number).storage_offset()
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert parts[0].is_contiguous() == (dimension == 0)
