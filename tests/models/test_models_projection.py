"""Projections: the kinds differ in how they compute, not in what."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.config.model import AnyQkv, Transformer
from transformer_core.models.loss import token_loss_sum
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


def build_kind(kind, d_model, heads, parts):
    spec = TypeAdapter(AnyQkv).validate_python(SPECS[kind])
    return build_projection(spec, d_model, heads, parts)


def copy_weights(source, target):
    with torch.no_grad():
        for (_, w0, b0), (_, w1, b1) in zip(source.blocks(), target.blocks(), strict=True):
            w1.copy_(w0)
            b1.copy_(b0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", PARTS)
def test_equals_separate_with_copied_weights(kind, parts):
    torch.manual_seed(0)
    separate = build_kind("separate", 12, 3, parts)
    other = build_kind(kind, 12, 3, parts)
    copy_weights(separate, other)
    x = torch.randn(2, 5, 12)
    results, expected = other(x), separate(x)
    assert len(results) == len(parts)
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.shape == (2, 3, 5, 4)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_initialised_one_by_one(kind):
    projection = build_kind(kind, 64, 4, ("query", "key", "value"))
    projection.initialise()
    for _, weight, bias in projection.blocks():
        # Xavier for [64, 64]: bound sqrt(6 / 128); for the fused [192, 64] it would be smaller.
        assert weight.abs().max().item() == pytest.approx((6 / 128) ** 0.5, rel=0.01)
        assert not bias.any()


def model_of(kind, seed=5):
    torch.manual_seed(seed)
    spec = Transformer(d_model=16, d_ff=32, heads=2, dropout=0.1, qkv=SPECS[kind])
    return build_model(spec, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_initial_weights(kind):
    state, expected = canonical_state_dict(model_of(kind)), model_of("separate").state_dict()
    assert set(state) == set(expected)
    for name in expected:
        assert torch.equal(state[name], expected[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_trains_the_same_model(kind):
    def trained(kind):
        model = model_of(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.manual_seed(7)  # dropout
        for _ in range(4):
            source, target = torch.randint(4, 30, (2, 8, 6))
            loss = token_loss_sum(model(source, target), target, 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return canonical_state_dict(model)

    state, expected, start = (
        trained(kind),
        trained("separate"),
        canonical_state_dict(model_of(kind)),
    )
    for name in expected:
        torch.testing.assert_close(state[name], expected[name], rtol=1e-4, atol=1e-5)
    assert any((state[name] - start[name]).abs().max() > 1e-3 for name in state)


@pytest.mark.parametrize(("kind", "dimension"), [("batch_outer", 1), ("batch_inner", 0)])
def test_layouts_lie_in_memory_as_they_say(kind, dimension):
    projection = build_kind(kind, 12, 3, ("query", "key", "value"))
    parts = projection(torch.randn(2, 5, 12))
    shape = [2, 3, 5, 4]  # b, h, n, k
    shape.insert(dimension, 3)
    whole = torch.empty(shape)
    for number, part in enumerate(parts):
        assert part.stride() == whole.select(dimension, number).stride()
        assert part.storage_offset() == whole.select(dimension, number).storage_offset()
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert parts[0].is_contiguous() == (dimension == 0)


def test_layout_follows_the_permutations_of_the_study():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)
    inner, outer = (
        build_kind(k, 12, 3, ("query", "key", "value")) for k in ("batch_inner", "batch_outer")
    )
    qkv = inner.linear(x).reshape(2, 5, 3, 4, 3)  # b n h d qkv
    published = qkv.permute((4, 0, 2, 1, 3))
    for part, expected in zip(inner(x), (published[0], published[1], published[2]), strict=True):
        assert torch.equal(part, expected)
    qkv = outer.linear(x).reshape(2, 5, 3, 4, 3)
    published = qkv.permute((0, 4, 2, 1, 3))
    for part, expected in zip(
        outer(x), (published[:, 0, :], published[:, 1, :], published[:, 2, :]), strict=True
    ):
        assert torch.equal(part, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_equals_separate_on_cuda(kind, precision):
    parts = PARTS[0]
    torch.manual_seed(0)
    separate, other = (build_kind(k, 64, 4, parts).cuda() for k in ("separate", kind))
    copy_weights(separate, other)

    def results(projection):
        torch.manual_seed(1)
        x = torch.randn(4, 33, 64, device="cuda", requires_grad=True)
        with torch.autocast("cuda", precision, enabled=precision != torch.float32):
            heads = projection(x)
        sum((i + 1) * part.float().square().sum() for i, part in enumerate(heads)).backward()
        gradients = {}
        for (part, _, _), index in zip(projection.blocks(), range(len(parts)), strict=True):
            named = dict(projection.named_parameters())
            if f"{part}.weight" in named:
                gradients[part] = named[f"{part}.weight"].grad
            elif SPECS[kind]["kind"] == "layout":
                gradients[part] = named["linear.weight"].grad[index :: len(parts)]
            else:
                gradients[part] = named["linear.weight"].grad.chunk(len(parts))[index]
        return [*(part.float() for part in heads), x.grad, *gradients.values()]

    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[precision]
    for ours, theirs in zip(results(other), results(separate), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close * theirs.abs().max().item())
