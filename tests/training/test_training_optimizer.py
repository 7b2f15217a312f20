import math
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from schemas.config.training import AdamW, AdamW8bit, Constant, Cosine, Linear, Noam, Sgd
from schemas.errors import Unsupported
from tests.training.small_training import small_setup, small_spec
from transformer_core.training.optimizer import build_optimizer, learning_rate

CPU = torch.device("cpu")
SPECS = {
    "adamw": AdamW(),
    "unfused": AdamW(fused=False),
    "8bit": AdamW8bit(kind="adamw_8bit"),
}


def need_eight_bit():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes, an optional dependency, is missing")


def problem(spec, width=128, rate=1e-2):
    """A linear model, an optimizer for it, and a function that takes a step."""
    torch.manual_seed(5)
    module = nn.Linear(width, 64, bias=False)
    x = torch.randn(32, width)
    y = torch.randn(32, 64)
    optimizer = build_optimizer(spec, module.named_parameters(), CPU)

    def step():
        optimizer.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        optimizer.step()
        return float(loss.detach())

    return SimpleNamespace(module=module, optimizer=optimizer, step=step)


def test_adamw_follows_the_paper():
    """Compares two steps with Algorithm 2 of arXiv 1711.05101."""
    spec = AdamW(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    it = problem(spec, rate=0.01)
    w = it.module.weight.detach().double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t in (1, 2):
        it.step()
        g = it.module.weight.grad.double()
        m = 0.8 * m + 0.2 * g
        v = 0.95 * v + 0.05 * g * g
        update = (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6)
        w = w - 0.01 * update - 0.01 * 0.1 * w
    torch.testing.assert_close(it.module.weight.double(), w, rtol=1e-5, atol=1e-6)


def test_sgd_adds_momentum_and_multiplies_the_rate():
    it = problem(Sgd(kind="sgd", momentum=0.5, rate_factor=20.0), rate=0.01)
    w = it.module.weight.detach().double()
    velocity = torch.zeros_like(w)
    for _ in range(3):
        it.step()
        velocity = 0.5 * velocity + it.module.weight.grad.double()
        w = w - 0.2 * velocity
    torch.testing.assert_close(it.module.weight.double(), w, rtol=1e-5, atol=1e-6)


def test_fused_and_unfused_adamw_agree():
    fused, unfused = problem(SPECS["adamw"]), problem(SPECS["unfused"])
    assert fused.optimizer.param_groups[0]["fused"] is True
    assert not unfused.optimizer.param_groups[0]["fused"]
    # torch has no fused kernel for this device.
    parameters = nn.Linear(2, 2, device="meta").named_parameters()
    elsewhere = build_optimizer(AdamW(), parameters, torch.device("meta"))
    assert not elsewhere.param_groups[0]["fused"]
    for _ in range(10):
        fused.step()
        unfused.step()
    torch.testing.assert_close(fused.module.weight, unfused.module.weight)


@pytest.mark.parametrize(("width", "eight_bits"), [(1024, True), (63, False)])
def test_moments_of_4096_elements_or_more_have_8_bits(width, eight_bits):
    need_eight_bit()
    it = problem(SPECS["8bit"], width)
    it.step()
    moments = [
        value
        for value in it.optimizer.state[it.module.weight].values()
        if isinstance(value, torch.Tensor) and value.numel() == it.module.weight.numel()
    ]
    assert {moment.element_size() for moment in moments} == {1 if eight_bits else 4}


def test_8_bit_adamw_follows_adamw():
    need_eight_bit()
    exact, rounded = problem(SPECS["adamw"], rate=1e-3), problem(SPECS["8bit"], rate=1e-3)
    start = exact.module.weight.detach().clone()
    for _ in range(20):
        assert rounded.step() == pytest.approx(exact.step(), rel=0.01)
    moved = torch.dist(start, exact.module.weight).detach()
    apart = torch.dist(exact.module.weight, rounded.module.weight).detach()
    assert 0 < float(apart) < 0.1 * float(moved)


def test_missing_library_is_named_with_its_remedy(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformer_core.training.eight_bit_adamw", raising=False)
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r"8-bit AdamW needs bitsandbytes.*pip install 'bitsandbytes>=0\.50'"
    with pytest.raises(Unsupported, match=message):
        problem(SPECS["8bit"])


def test_a_library_without_a_kernel_for_the_device_is_detected(monkeypatch):
    need_eight_bit()
    from transformer_core.training.eight_bit_adamw import BlockwiseAdamW

    monkeypatch.setattr(
        BlockwiseAdamW, "step", Mock(side_effect=NotImplementedError("no such operator"))
    )
    with pytest.raises(Unsupported, match="cannot take a step on cpu: no such operator"):
        problem(SPECS["8bit"])


@pytest.mark.usefixtures("group")
def test_8_bit_state_of_shards_is_refused():
    need_eight_bit()
    training = {"optimizer": {"kind": "adamw_8bit"}}
    with pytest.raises(Unsupported, match="cannot work on shards"):
        small_setup(small_spec(parallel={"kind": "fsdp"}, training=training))


@pytest.mark.parametrize(
    ("factor", "step", "d_model", "times"),
    [(1.0, 4_000, 512, 1), (1.0, 1_000, 512, 0.25), (1.0, 16_000, 512, 0.5), (2.0, 4_000, 128, 4)],
)
def test_noam_has_the_values_of_the_paper(factor, step, d_model, times):
    rate = learning_rate(Noam(factor=factor, warmup=4_000), step, 9, d_model)
    assert rate == pytest.approx(times / math.sqrt(512 * 4_000))


ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("kind", "peak", "warmup", "expected"),
    [
        (Linear, 8.0, 4, [2, 4, 6, 8, 6, 4, 2, 0]),
        (Linear, 4.0, 0, [3, 2, 1, 0]),
        (Linear, 4.0, 4, [1, 2, 3, 4]),
        (Constant, 3.0, 3, [1, 2, 3, 3, 3, 3]),
        (Constant, 3.0, 0, [3, 3, 3]),
        (Cosine, 2.0, 2, [1, 2, 1 + ROOT, 1, 1 - ROOT, 0]),
        (Cosine, 2.0, 0, [1 + ROOT, 1, 1 - ROOT, 0]),
    ],
)
def test_other_schedules_have_their_values(kind, peak, warmup, expected):
    spec = kind(kind=kind.__name__.lower(), peak=peak, warmup=warmup)
    steps = len(expected)
    found = [learning_rate(spec, step, steps, 512) for step in range(1, steps + 1)]
    assert found == pytest.approx(expected)
