"""Weights in bfloat16 with master copies of 32 bits."""

from contextlib import closing

import pytest
import torch
from torch import nn

from schemas.config.training import AdamW, Bf16Weights, Sgd
from schemas.errors import Unsupported
from tests.training.small_training import small_setup, small_spec
from transformer_core.certify.dropout import _moved
from transformer_core.models.registry import build_model
from transformer_core.study.checks import violations
from transformer_core.training import optimizer as optimizers
from transformer_core.training.loop import optimizer_step
from transformer_core.training.optimizer import (
    MASTER,
    build_optimizer,
    by_torch,
    in_one_loop,
    masters_of,
)
from transformer_core.training.precision import build_precision

CPU = torch.device("cpu")
FORMAT = {"precision": {"kind": "bf16_weights"}}


def problem():
    torch.manual_seed(0)
    wide = torch.randn(5000)
    weight = nn.Parameter(wide.to(torch.bfloat16))
    gradients = [torch.randn(5000).to(torch.bfloat16) for _ in range(3)]
    return weight, wide, gradients


@pytest.mark.parametrize("update", [in_one_loop, by_torch])
def test_the_update_is_that_of_torchs_adamw_on_weights_of_32_bits(monkeypatch, update):
    """Gradients are divided by a factor in place, as in torch's fused kernels."""
    monkeypatch.setattr(optimizers, "in_one_loop", update)
    weight, wide, gradients = problem()
    spec = AdamW(weight_decay=0.1)
    optimizer = build_optimizer(spec, nn.ParameterList([weight]), CPU, {weight: wide.clone()})
    optimizer.grad_scale = torch.tensor(4.0)
    plain = nn.Parameter(wide.clone())
    reference = torch.optim.AdamW(
        [plain], lr=1e-3, betas=spec.betas, eps=spec.eps, weight_decay=0.1
    )
    for gradient in gradients:
        weight.grad, plain.grad = 4 * gradient, gradient.float()
        optimizer.param_groups[0]["lr"] = 1e-3
        optimizer.step()
        reference.step()
        assert torch.equal(weight.grad, gradient)
        found, expected = optimizer.state[weight], reference.state[plain]
        torch.testing.assert_close(found[MASTER], plain.detach(), rtol=2e-6, atol=1e-7)
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(found[key], expected[key], rtol=2e-6, atol=1e-7)
        assert torch.equal(weight.detach(), found[MASTER].to(torch.bfloat16))


def test_frozen_weights_have_no_master_and_16_bits_get_one_of_32():
    """As a model of the user's own may have them."""
    layer = nn.Linear(4, 4).bfloat16()
    layer.bias.requires_grad_(False)
    masters = build_precision(Bf16Weights(kind="bf16_weights"), CPU).convert(layer)
    found = masters_of(build_optimizer(AdamW(), layer, CPU, masters))
    assert [(parameter is layer.weight, m.dtype) for parameter, m in found.items()] == [
        (True, torch.float32)
    ]


def test_other_optimizers_are_refused():
    weight, wide, _ = problem()
    with pytest.raises(Unsupported, match=r"training.optimizer: sgd .* use adamw"):
        build_optimizer(Sgd(kind="sgd"), nn.ParameterList([weight]), CPU, {weight: wide})


@pytest.mark.parametrize(
    ("sections", "remedy"),
    [
        ({"parallel": {"kind": "fsdp"}}, "parallel.bf16: true"),
        ({"parallel": {"kind": "central"}}, "ddp"),
        ({"parallel": {"kind": "ddp", "hook": {"kind": "ring"}}}, "hook: null"),
        ({"training": {"optimizer": {"kind": "sgd"}}}, "adamw"),
        ({"model": {"kind": "torch_nn"}}, "precision: {kind: bf16}"),
    ],
)
def test_incompatible_settings_are_named_with_a_remedy(sections, remedy):
    training = FORMAT | sections.pop("training", {})
    found = list(violations(small_spec(training=training, **sections)))
    assert [field for field, *_ in found] == ["training.precision.kind"]
    assert remedy in found[0][3]


def test_a_residual_of_16_bits_needs_products_of_16_bits():
    found = list(violations(small_spec(model={"residual": "bf16"})))
    assert [field for field, *_ in found] == ["model.residual"]
    for kind in ("bf16", "bf16_weights"):
        fitting = small_spec(model={"residual": "bf16"}, training={"precision": {"kind": kind}})
        assert not list(violations(fitting))


@pytest.mark.parametrize(
    "model", [{}, {"tokens": {"kind": "unpadded"}, "memory_products": "together"}]
)
@pytest.mark.parametrize("training", [{}, {"loss": {"kind": "one_pass"}, "clipping": "folded"}])
def test_losses_only_differ_from_32_bits_by_rounding(model, training):
    plain = small_setup(small_spec(training=training, model=model))
    low = small_setup(small_spec(training=FORMAT | training, model=model))
    assert all(p.dtype == torch.bfloat16 for p in low.model.parameters())
    losses = []
    for setup in (plain, low):
        setup.module.train()
        with closing(setup.feed.batches()) as batches:
            losses.append([float(optimizer_step(setup, next(batches), 3e-3)[0]) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1] != losses[0]


@pytest.mark.parametrize("method", ["shared_draws", "fused"])
def test_the_residual_stream_has_16_bits(method):
    model = {"residual": "bf16", "dropout_method": {"kind": method}}
    setup = small_setup(small_spec(model=model, training={"precision": {"kind": "bf16"}}))
    seen = []
    for layer in (*setup.model.encoder, *setup.model.decoder):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    setup.module.train()
    with closing(setup.feed.batches()) as batches:
        optimizer_step(setup, next(batches), 1e-3)
    assert set(seen) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in setup.model.parameters())


def test_an_evaluation_takes_16_bit_weights_in_32_bits_for_any_residual_stream():
    model = build_model(small_spec(model={"residual": "bf16"}, training=FORMAT).model, 50)
    tokens = torch.randint(4, 50, (2, 5))
    assert model.decode(model.encode(tokens), tokens, tokens).dtype == torch.float32


def test_moves_of_the_weights_for_a_certificate_go_to_the_masters():
    # bfloat16 weights would lose most of such a move, and the next update would undo the rest.
    setup = small_setup(small_spec(training=FORMAT, model={"dropout": 0.1}))
    before = [master.clone() for master in masters_of(setup.optimizer).values()]
    direction = [torch.full_like(p, 1e-4) for p in setup.module.parameters()]
    _moved(setup, direction, 1.0)()
    for (weight, master), old in zip(masters_of(setup.optimizer).items(), before, strict=True):
        torch.testing.assert_close(master - old, torch.full_like(old, 1e-4), rtol=0.01, atol=1e-6)
        assert torch.equal(weight.detach(), master.to(torch.bfloat16))
