"""The decoder: what each option computes, masks of documents, initial weights; and its objective."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError

from schemas.config.model import DecoderOnly
from schemas.config.run_spec import LanguageModel
from schemas.config.training import AnyLoss
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.loss import one_pass_loss_sum, token_loss_sum
from transformer_core.models.objective import objective
from transformer_core.models.positions import rotated
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model
from transformer_core.techniques import liger

V, SIZES = 37, {"layers": 2, "d_model": 24, "d_ff": 40, "heads": 4}
OPTIONS = [
    {},
    {"kv_heads": 2},
    {"kv_heads": 1, "qkv": {"kind": "separate"}, "bias": True},
    {"positions": {"kind": "learned", "length": 16}, "norm": {"kind": "layer"}, "bias": True},
    {"positions": {"kind": "sinusoidal"}, "feed_forward": {"kind": "relu"}},
    {"feed_forward": {"kind": "gelu"}, "tied_embeddings": False},
    {"attention": {"kind": "reference"}},
    {"tokens": {"kind": "unpadded", "blocks": 2, "row_multiple": 16}},
]


def build(seed=1, **fields):
    torch.manual_seed(seed)
    return build_model(DecoderOnly(**SIZES | fields), V)


def batch():
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (torch.randint(4, V, (3, 10), generator=generator) for _ in range(2))
    segments = torch.tensor([[0] * 10, [0] * 3 + [1] * 7, [0] * 4 + [1] * 4 + [2] * 2])
    targets[1, 7:] = PAD
    return tokens, targets, segments


@pytest.mark.parametrize("fields", OPTIONS)
def test_a_token_sees_neither_later_ones_nor_another_document(fields):
    tokens, targets, segments = batch()
    model = build(**fields)
    other = tokens.clone()
    other[:, 5:] = 4
    joined, changed = model.logits(tokens), model.logits(other)
    torch.testing.assert_close(changed[:, :5], joined[:, :5])
    assert not torch.allclose(changed[:, 5:], joined[:, 5:])

    logits, loss = model.logits(tokens, segments), model(tokens, targets, segments)
    assert not torch.allclose(logits, joined)
    alone = torch.zeros(())
    for row, begin, end in [(0, 0, 10), (1, 0, 3), (1, 3, 10), (2, 0, 4), (2, 4, 8), (2, 8, 10)]:
        document = tokens[row : row + 1, begin:end]
        expected = model.logits(document)[0]
        torch.testing.assert_close(logits[row, begin:end], expected, rtol=1e-4, atol=1e-5)
        alone = alone + model(document, targets[row : row + 1, begin:end])
    torch.testing.assert_close(loss, alone)


@pytest.mark.parametrize("fields", [{}, {"kv_heads": 2, "bias": True}])
def test_the_kind_of_projection_changes_neither_weights_nor_logits(fields):
    one, other = (build(qkv={"kind": kind}, **fields) for kind in ("fused", "separate"))
    weights, others = canonical_state_dict(one), canonical_state_dict(other)
    assert weights.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    tokens, _, _ = batch()
    torch.testing.assert_close(one.logits(tokens), other.logits(tokens), rtol=1e-4, atol=1e-6)


def test_initial_weights():
    model = build(bias=True)
    state = canonical_state_dict(model)
    assert all(bool((t == 0).all()) for n, t in state.items() if n.endswith("bias"))
    assert all(bool((t == 1).all()) for n, t in state.items() if n.endswith("norm.weight"))
    spread = {n: float(t.std()) for n, t in state.items() if t.dim() == 2}
    for name, std in spread.items():
        adds = name.endswith(("self_attention.output.weight", "feed_forward.outer.weight"))
        assert std == pytest.approx(0.02 / 2 if adds else 0.02, rel=0.15), name
    seeds = [torch.cat([p.flatten() for p in build(seed).parameters()]) for seed in (1, 1, 2)]
    assert torch.equal(seeds[0], seeds[1])
    assert not torch.equal(seeds[0], seeds[2])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("head", [None, lambda h, w, y: one_pass_loss_sum(h, w, y, 0.0)])
def test_texts_in_a_list_have_the_gradients_of_padded_rows(masked, head):
    tokens, targets, segments = batch()
    tokens[1, 7:] = PAD
    lengths = np.array([10, 3, 4, 4, 4, 2]) if masked else np.array([10, 7, 10])
    found = []
    for kind, known in (("padded", None), ("unpadded", None), ("unpadded", lengths)):
        model = build(tokens={"kind": kind}, kv_heads=2, dropout=0.0)
        more = {} if head is None else {"loss": head}
        loss = model(tokens, targets, segments if masked else None, lengths=known, **more)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def rope(q, k, cos, sin):
    """Rotates as the transformers library does for Llama; cos and sin [b, n, k]."""

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    return turned(q), turned(k)


LIGER = SimpleNamespace(
    liger_rms_norm=lambda x, weight, eps, in_place: F.rms_norm(x, weight.shape, weight, eps),
    liger_swiglu=lambda gate, value: F.silu(gate) * value,
    liger_rope=rope,
)
"""The library's kernels, implemented in torch."""


def test_a_model_of_ligers_kernels_is_the_same_model(monkeypatch):
    monkeypatch.setattr(liger, "library", lambda field, x: LIGER)
    tokens, _, segments = batch()
    ours, theirs = (build(kv_heads=1, kernels=kernels) for kernels in ("torch", "liger"))
    for seen in (segments, None):
        torch.testing.assert_close(theirs.logits(tokens, seen), ours.logits(tokens, seen))


@pytest.mark.gpu
class InPlace(torch.autograd.Function):
    """Rotates like Liger's kernel: in place wherever a token's heads lie side by side in memory."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        places = x.transpose(1, 2).contiguous()
        with torch.autograd._unsafe_preserve_version_counter(places):
            places.copy_(rotated(places.transpose(1, 2), (cos, sin)).transpose(1, 2))
        return places.transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return rotated(grad, (cos, -sin)), None, None


@pytest.mark.parametrize("qkv", ["separate", "fused"])
def test_products_kept_for_a_second_computation_are_not_rotated_twice(monkeypatch, qkv):
    def in_place(q, k, cos, sin):
        turn = [part[:, None].chunk(2, -1)[0] for part in (cos, sin)]
        return InPlace.apply(q, *turn), InPlace.apply(k, *turn)

    kernels = SimpleNamespace(**vars(LIGER) | {"liger_rope": in_place})
    monkeypatch.setattr(liger, "library", lambda field, x: kernels)

    def gradients(**fields):
        torch.manual_seed(0)
        model = build(qkv={"kind": qkv}, **fields)
        model(batch()[0]).square().sum().backward()
        return [p.grad for p in model.parameters()]

    expected = gradients()
    for ours, right in zip(
        gradients(kernels="liger", checkpoint="products"), expected, strict=True
    ):
        torch.testing.assert_close(ours, right)


def test_ligers_kernels_compute_what_torch_does():
    pytest.importorskip("liger_kernel")
    tokens = torch.randint(4, V, (3, 8), device="cuda")
    found = []
    for kernels in ("torch", "liger"):
        model = build(d_model=64, d_ff=128, heads=2, kernels=kernels).cuda()
        loss = model(tokens, tokens.roll(-1))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


FUSED = {"attention": {"kind": "fused_softmax"}, "dropout_method": {"kind": "fused"}}


@pytest.mark.parametrize("kinds", [{}, FUSED])
def test_drops_in_training_only(kinds):
    tokens, _, segments = batch()
    model = build(dropout=0.3, **kinds)
    assert not torch.equal(model.logits(tokens, segments), model.logits(tokens, segments))
    expected = build(attention={"kind": "reference"}).logits(tokens, segments)
    torch.testing.assert_close(model.eval().logits(tokens, segments), expected)


@pytest.mark.filterwarnings("error:Mismatch dtype")
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_residual_stream_is_of_16_bits(norm):
    tokens, targets, segments = batch()
    seen = []
    model = build(residual="bf16", norm={"kind": norm})
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, targets, segments)
    assert seen == [torch.bfloat16] * SIZES["layers"]
    assert loss.dtype == torch.float32
    plain = build(norm={"kind": norm})(tokens, targets, segments)
    torch.testing.assert_close(loss, plain, rtol=0.01, atol=0)


def test_a_row_beyond_the_table_is_refused():
    model = build(positions={"kind": "learned", "length": 4})
    with pytest.raises(ValueError, match=r"row of 5 tokens .*model\.positions\.length"):
        model.logits(torch.full((1, 5), 7))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 5}, "does not divide d_model = 24"),
        ({"heads": 4, "kv_heads": 3}, "does not divide heads = 4"),
        ({"heads": 8}, "come in pairs"),
        ({"d_model": 9, "heads": 3, "positions": {"kind": "sinusoidal"}}, "come in pairs"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        DecoderOnly(**{"d_model": 24, "heads": 4, **fields})


MASKED = LanguageModel(kind="language_model", context=16)


def texts():
    """Three rows of tokens; the second has texts of 3 and 7 tokens and ends with padding."""
    inputs, labels, _ = batch()
    inputs[:, 0] = inputs[1, 3] = BOS
    inputs[1, 7:] = PAD
    return torch.empty((3, 0), dtype=torch.int64), inputs, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["whole", "chunked", "one_pass"])
def test_every_loss_of_texts_equals_that_of_the_logits(kind, smoothing):
    loss = TypeAdapter(AnyLoss).validate_python({"kind": kind})
    module = objective(MASKED, build(), smoothing, loss)
    source, inputs, labels = texts()
    expected = token_loss_sum(module.logits(source, inputs), labels, smoothing)
    torch.testing.assert_close(module(source, inputs, labels), expected)
