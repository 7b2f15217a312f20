"""Independent computations of a model's loss and gradients: a plain function, and the model's own
code in 64 bits; and the number formats that they emulate."""

import math
from typing import Any

import pytest
import torch

from schemas.config.model import DecoderOnly, HuggingFace, HuggingFaceCausal
from schemas.config.run_spec import LanguageModel
from tests.measure.short_runs import recorded
from tests.training.small_training import small_spec
from transformer_core.certify.number_formats import (
    EXACT,
    SINGLE,
    adds_in_32_bits,
    format_of,
    single_is_independent,
    to_bf16,
)
from transformer_core.certify.plain_models import OwnModel, PlainDecoder
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.qkv_projection import canonical_state_dict
from transformer_core.models.registry import build_model

VOCABULARY, SMOOTHING = 30, 0.1
MODELS = {
    "llama": {"kv_heads": 2},
    "gpt2": {
        "bias": True,
        "positions": {"kind": "learned", "length": 12},
        "norm": {"kind": "layer"},
        "feed_forward": {"kind": "gelu"},
    },
    "exact_gelu": {"feed_forward": {"kind": "gelu", "approximate": "none"}},
    "relu": {
        "positions": {"kind": "sinusoidal"},
        "feed_forward": {"kind": "relu"},
        "tied_embeddings": False,
        "kv_heads": 1,
    },
}
Weights = dict[str, torch.Tensor]


def decoder(**sections: Any) -> DecoderOnly:
    sizes = {"layers": 1, "d_model": 16, "heads": 4, "d_ff": 20}
    return DecoderOnly.model_validate(sizes | sections)


def weights_of(model: torch.nn.Module, noise: float = 0.0) -> Weights:
    """Noise makes biases and normalizations differ from 0 and 1, so that omitting them shows."""
    return {
        name: w + noise * torch.randn_like(w) for name, w in canonical_state_dict(model).items()
    }


def task(texts: str = "masked") -> LanguageModel:
    return LanguageModel(kind="language_model", context=12, texts=texts, prompt=2, continuation=4)


def tokens():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(4, VOCABULARY, (3, 10), generator=generator)
    inputs[:, 0] = inputs[0, 4] = inputs[1, 7] = inputs[1, 8] = BOS
    labels = torch.randint(4, VOCABULARY, (3, 10), generator=generator)
    inputs[2, 6:] = labels[2, 6:] = PAD
    return torch.empty((3, 0), dtype=torch.int64), inputs, labels


@pytest.mark.parametrize("texts", ["masked", "joined"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient_of_the_plain_function_agree_with_the_model(name, texts):
    spec = decoder(layers=2, **MODELS[name])
    torch.manual_seed(1)
    weights = weights_of(build_model(spec, VOCABULARY), noise=0.1)
    own = OwnModel(spec, VOCABULARY, SMOOTHING, task(texts))
    plain = PlainDecoder(spec, SMOOTHING, masked=texts == "masked")
    expected_loss, expected, *_ = own.loss_and_gradients(weights, tokens(), EXACT)
    loss, found, *_ = plain.loss_and_gradients(weights, tokens(), EXACT)
    # Even in 64 bits the model computes angles of rotary positions in 32.
    close = 1e-5
    assert loss == pytest.approx(expected_loss, rel=close)
    assert set(expected) <= set(found)
    for key, gradient in expected.items():
        error = (found[key] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert error < close, key


def test_masks_change_the_loss():
    """Otherwise the agreement above would say nothing about masks."""
    spec = decoder(initial_std=0.5)
    weights = weights_of(build_model(spec, VOCABULARY))
    masked, joined = (
        PlainDecoder(spec, 0.0, masked).loss_and_gradients(weights, tokens(), EXACT).loss
        for masked in (True, False)
    )
    assert abs(masked - joined) > 1e-3


SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_norm_of_all_gradients_is_that_of_the_model(architecture, tied):
    pytest.importorskip("transformers")
    fields = SIZES | {"layers": 1, "architecture": architecture, "tied_embeddings": tied}
    spec = HuggingFaceCausal.model_validate({"kind": "huggingface_causal"} | fields)
    torch.manual_seed(1)
    model = build_model(spec, VOCABULARY)
    weights = weights_of(model)
    inputs, labels = torch.randint(4, VOCABULARY, (2, 3, 10)).unbind()
    inputs[:, 0] = BOS
    (model(inputs, labels) / labels.numel()).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    batch = torch.empty((3, 0), dtype=torch.int64), inputs, labels
    own = OwnModel(spec, VOCABULARY, 0.0, task())
    found = own.loss_and_gradients(weights, batch, EXACT).gradients
    assert len(found) == len(list(model.parameters()))
    assert math.sqrt(sum(float(g.square().sum()) for g in found.values())) == pytest.approx(norm)


@pytest.mark.parametrize("tied", [True, False])
def test_a_translation_model_has_its_tied_matrix_once(tied, tmp_path):
    pytest.importorskip("transformers")
    fields = SIZES | {"kind": "huggingface", "tied_embeddings": tied}
    model = build_model(HuggingFace.model_validate(fields), VOCABULARY)
    pointers = [p.data_ptr() for p in canonical_state_dict(model).values()]
    assert len(pointers) == len(set(pointers))
    checks = recorded(small_spec(model=fields), tmp_path).trajectory.checks
    for point in checks.points:
        assert point.norm == pytest.approx(point.expected_norm, rel=1e-4)


FSDP = {"parallel": {"kind": "fsdp", "bf16": True}}
WEIGHTS = {"training": {"precision": {"kind": "bf16_weights"}}}
AUTOCAST = {"training": {"precision": {"kind": "bf16"}}}


def test_a_users_model_is_expected_to_have_the_loss_that_it_trains(tmp_path):
    sizes = {"heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    own = {"kind": "import", "factory": "docs.examples.own_model:build", **sizes}
    training = {"steps": 2, "loss": {"kind": "kl_divergence"}}
    checks = recorded(small_spec(model=own, training=training), tmp_path).trajectory.checks
    assert checks is not None
    assert [point.loss for point in checks.points] == pytest.approx(
        [point.expected_loss for point in checks.points], rel=1e-5
    )
    assert max(found.error for found in checks.gradients if found.size > 1e-3) < 1e-3


def gradients(weights: Weights, **sections: Any) -> Weights:
    """Gradients of a small model, in the format of a run spec with these sections."""
    plain = PlainDecoder(decoder(heads=2), 0.0, masked=False)
    batch = torch.empty((1, 0)), torch.tensor([[1, 7, 9, 4]]), torch.tensor([[7, 9, 4, 5]])
    return plain.loss_and_gradients(weights, batch, format_of(small_spec(**sections))).gradients


@pytest.fixture
def some_weights():
    torch.manual_seed(1)
    return weights_of(build_model(decoder(heads=2), VOCABULARY), noise=0.01)


@pytest.mark.parametrize("change", [FSDP, WEIGHTS], ids=["fsdp", "weights"])
def test_weights_of_normalizations_are_rounded_if_the_technique_rounds_them(change, some_weights):
    rounded = {key: to_bf16(w) for key, w in some_weights.items()}
    found, expected = gradients(some_weights, **change), gradients(rounded, **change)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert all(torch.equal(found[key], to_bf16(found[key])) for key in found)
    moved = some_weights | {"norm.weight": rounded["norm.weight"]}
    found, other = gradients(some_weights, **AUTOCAST), gradients(moved, **AUTOCAST)
    assert any(not torch.equal(found[key], other[key]) for key in found), "autocast rounds none"


def test_products_of_fewer_bits_are_noticed(monkeypatch):
    assert adds_in_32_bits()
    whole = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: whole(to_bf16(a), to_bf16(b)))
    assert not adds_in_32_bits()


def test_gradients_belong_to_the_weights_that_a_step_uses(some_weights):
    used = format_of(small_spec(**WEIGHTS)).weights_used(some_weights, some_weights)
    assert all(torch.equal(used[key], to_bf16(w)) for key, w in some_weights.items())
    in_32_bits = format_of(small_spec(parallel={"kind": "fsdp"}))
    assert in_32_bits is SINGLE
    for form in (format_of(small_spec(**AUTOCAST)), in_32_bits):
        assert form.weights_used(some_weights, some_weights) is some_weights


def test_a_run_is_not_judged_by_products_that_it_replaces():
    assert single_is_independent(small_spec(**AUTOCAST))
    assert not single_is_independent(small_spec(training={"precision": {"kind": "fp32_onednn"}}))
