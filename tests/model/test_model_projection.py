"""Projections: the kinds differ in how they compute, not in what."""

import pytest
import torch
from pydantic import TypeAdapter

from schemas.model import AnyQkv, Transformer
from transformer_core.model.build import build_model
from transformer_core.model.loss import token_loss_sum
from transformer_core.model.projection import PROJECTIONS, build_projection, canonical_state_dict

KINDS = sorted(PROJECTIONS)
PARTS = [("query", "key", "value"), ("key", "value"), ("query",)]


def build_kind(kind, d_model, heads, parts):
    spec = TypeAdapter(AnyQkv).validate_python({"kind": kind})
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
def test_heads_are_slices_of_the_product(kind):
    torch.manual_seed(0)
    projection = build_kind(kind, 12, 3, ("key", "value"))
    x = torch.randn(2, 5, 12)
    for result, (_, weight, bias) in zip(projection(x), projection.blocks(), strict=True):
        product = x @ weight.T + bias
        for head in range(3):
            torch.testing.assert_close(result[:, head], product[..., 4 * head : 4 * head + 4])


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
    spec = Transformer(d_model=16, d_ff=32, heads=2, dropout=0.1, qkv={"kind": kind})
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


def test_canonical_state_of_a_bare_projection():
    projection = build_kind("fused", 8, 2, ("key", "value"))
    state = canonical_state_dict(projection)
    assert set(state) == {"key.weight", "key.bias", "value.weight", "value.bias"}
    assert torch.equal(state["value.weight"], projection.linear.weight[8:])
    assert not state["key.weight"].requires_grad
