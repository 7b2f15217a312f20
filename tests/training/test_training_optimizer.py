"""Optimizers, those of torch and those that are techniques, and learning rates."""

import importlib
import math
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from schemas.config.training import AdamW, AdamW8bit, Constant, Cosine, Linear, Noam, Sgd
from schemas.errors import Unsupported
from tests.training.small_training import VOCABULARY, small_setup, small_spec
from transformer_core.parallel.topology import fsdp_fault
from transformer_core.techniques.compiled_adamw import CompiledAdamW
from transformer_core.techniques.muon import Muon
from transformer_core.techniques.schedule_free import ScheduleFreeAdamW
from transformer_core.techniques.zero_redundancy import ZeroRedundancy
from transformer_core.training.optimizer import build_optimizer, learning_rate

CPU = torch.device("cpu")
SPECS = {
    "adamw": AdamW(),
    "unfused": AdamW(fused=False),
    "8bit": AdamW8bit(kind="adamw_8bit"),
}


def need_eight_bit():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes, an optional dependency, is missing")


def problem(spec, width=128):
    """A linear model, an optimizer for it, and a function that takes a step."""
    torch.manual_seed(5)
    module = nn.Linear(width, 64, bias=False)
    x = torch.randn(32, width)
    y = torch.randn(32, 64)
    optimizer = build_optimizer(spec, module, CPU)

    def step(rate=0.01):
        optimizer.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
        optimizer.step()
        return float(loss.detach())

    return SimpleNamespace(module=module, optimizer=optimizer, step=step)


def test_adamw_follows_the_paper():
    """Compares two steps with Algorithm 2 of arXiv 1711.05101."""
    spec = AdamW(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    it = problem(spec)
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
    it = problem(Sgd(kind="sgd", momentum=0.5, rate_factor=20.0))
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
    module = nn.Linear(2, 2, device="meta")
    elsewhere = build_optimizer(AdamW(), module, torch.device("meta"))
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
    exact, rounded = problem(SPECS["adamw"]), problem(SPECS["8bit"])
    start = exact.module.weight.detach().clone()
    for _ in range(20):
        assert rounded.step(1e-3) == pytest.approx(exact.step(1e-3), rel=0.01)
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
        BlockwiseAdamW, "step", Mock(side_effect=NotImplementedError("\nno such operator\nlibrary"))
    )
    with pytest.raises(Unsupported, match=r"cannot take a step on cpu: no such operator$"):
        problem(SPECS["8bit"])


@pytest.mark.usefixtures("group")
def test_8_bit_state_of_shards_is_refused():
    need_eight_bit()
    if fault := fsdp_fault("cpu"):
        pytest.skip(fault)
    training = {"optimizer": {"kind": "adamw_8bit"}}
    with pytest.raises(Unsupported, match="cannot work on shards"):
        small_setup(small_spec(parallel={"kind": "fsdp"}, training=training))


def test_the_compiled_step_is_that_of_adamw_and_compiled_once(monkeypatch):
    monkeypatch.setattr(CompiledAdamW, "backend", "aot_eager")
    spec = CompiledAdamW(kind="adamw_compiled", weight_decay=0.1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled, calls = problem(spec), []
    plain = problem(AdamW(betas=spec.betas, eps=spec.eps, weight_decay=0.1))
    compiled.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for number, rate in enumerate((0.01, 0.02, 0.03), start=1):
        compiled.step(rate)
        plain.step(rate)
        frames = torch._dynamo.utils.counters["frames"]
        assert frames["ok"] == frames["total"] == 1
        assert len(calls) == number
    torch.testing.assert_close(compiled.module.weight, plain.module.weight)
    assert compiled.optimizer.param_groups[0]["lr"] == pytest.approx(0.03)


def test_schedule_free_adamw_keeps_an_average_of_its_weights():
    pytest.importorskip("schedulefree")
    spec = ScheduleFreeAdamW(kind="adamw_schedule_free")
    it, one = problem(spec), spec.betas[0]
    for rate in (0.01, 0.02, 0.03, 0.04, 0.05):
        it.step(rate)
    weight = it.module.weight
    trained, end = weight.detach().clone(), it.optimizer.state[weight]["z"]
    it.optimizer.eval()
    # Gradients are taken at weights between the average and the last ones.
    torch.testing.assert_close(trained, one * weight.detach() + (1 - one) * end)


@pytest.mark.parametrize(
    ("spec", "sharded", "words"),
    [
        (ZeroRedundancy(kind="adamw_zero"), False, "no other rank"),
        (ZeroRedundancy(kind="adamw_zero"), True, "FSDP has already divided"),
        (Muon(kind="muon"), True, "whole matrices"),
        (ScheduleFreeAdamW(kind="adamw_schedule_free"), False, "pip install schedulefree"),
    ],
)
def test_optimizers_that_cannot_work_say_why(monkeypatch, spec, sharded, words):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match=words):
        spec.build(nn.Linear(2, 2), CPU, sharded)


@pytest.mark.parametrize(("how", "factor"), [("none", 1), ("square_root", 2), ("linear", 4)])
def test_the_rate_follows_the_batch(how, factor):
    sections = {"batching": {"scale": 4.0}, "training": {"rate_follows_batch": how}}
    spec, plain = small_spec(**sections), small_spec()
    for name in ("factor", "peak"):
        if hasattr(plain.schedule, name):
            assert getattr(spec.schedule, name) == factor * getattr(plain.schedule, name)
    assert spec.training.schedule == plain.training.schedule


def test_muon_of_a_torch_without_it_says_which_has_it(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(
        Unsupported, match=rf"needs torch 2\.9 or newer; this is {torch.__version__[0]}"
    ):
        Muon(kind="muon").build(nn.Linear(2, 2), CPU, False)


needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 or newer")


OWN = {"kind": "import", "factory": "docs.examples.own_model:build"}


@needs_muon
@pytest.mark.parametrize("model", [{}, {"tied_embeddings": False}, OWN])
def test_muon_trains_matrices_of_layers_and_adamw_the_rest(model):
    setup = small_setup(small_spec(model=model, training={"optimizer": {"kind": "muon"}}))
    names = {p: name for name, p in setup.module.named_parameters()}
    of_adam, of_muon = ({names[p] for p in g["params"]} for g in setup.optimizer.param_groups)
    assert of_adam | of_muon == set(names.values())
    layers = {name for p, name in names.items() if p.ndim == 2 and len(p) != VOCABULARY}
    assert layers
    assert of_muon == layers


@needs_muon
def test_muon_knows_embeddings_by_their_class_and_output_maps_by_name():
    linear = {name: nn.Linear(4, 9) for name in ("lm_head", "embed_out", "shared_expert")}
    module = nn.ModuleDict(linear | {"places": nn.Embedding(9, 4)})
    _, of_muon = (g["params"] for g in Muon(kind="muon").build(module, CPU, False).param_groups)
    assert of_muon == [linear["shared_expert"].weight]


@needs_muon
def test_an_update_of_a_matrix_by_muon_is_orthogonal():
    layer = nn.Linear(8, 8, bias=False)
    weight = nn.Parameter(torch.zeros(8, 8))
    layer.weight = weight
    optimizer = Muon(kind="muon").build(layer, CPU, False)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    values = torch.linalg.svdvals(weight.detach())
    # Newton-Schulz brings most singular values only near 1; the gradient's are further apart.
    before = torch.linalg.svdvals(weight.grad)
    assert values.std() / values.mean() < 0.5 * before.std() / before.mean()


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
