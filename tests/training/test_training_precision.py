"""Formats of products, weights and gradients: what they round, report, and where they are refused."""

import importlib
import itertools
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from schemas.config.model import DecoderOnly
from schemas.config.training import Bf16, Bf16Matmul, Fp16, Fp32, Fp32Onednn, Tf32
from schemas.errors import Unsupported
from tests.training.small_training import Watcher, small_setup, small_spec
from transformer_core.certify.number_formats import to_fp8
from transformer_core.models.registry import build_model
from transformer_core.parallel.sharded_weights import named_tensors
from transformer_core.techniques.float8 import Float8
from transformer_core.training import precision as matmul_mode
from transformer_core.training.loop import train
from transformer_core.training.precision import build_precision

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).resolve().parents[2]


def fp16(**fields):
    return Fp16(kind="fp16", **fields)


@pytest.fixture(autouse=True)
def _products_in_32_bit_afterwards():
    yield
    matmul_mode.set_matmul(Fp32(), CPU)


OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "unfused": partial(torch.optim.AdamW, lr=0.01),
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
}


def linear_and_optimizer(kind="adamw"):
    torch.manual_seed(3)
    module = nn.Linear(4, 3, bias=False)
    return module, OPTIMIZERS[kind](module.parameters())


def one_step(precision, module, optimizer, factor=1.0, clip_norm=0.0):
    """Take a step with the gradient ``factor`` for every weight; return the norm."""
    optimizer.zero_grad()
    with precision.autocast():
        loss = module(torch.ones(1, 4)).float().sum()
    precision.backward(loss * factor)
    return float(precision.step(optimizer, module.parameters(), clip_norm))


NORM = math.sqrt(12)
"""Norm of the gradient of :func:`one_step` for a factor of 1: twelve ones."""


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("spec", [Fp32(), Bf16(kind="bf16"), fp16(initial_scale=8.0)])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 100.0])
def test_norms_are_those_before_clipping_wherever_gradients_are_clipped(kind, spec, clip_norm):
    found = []
    for clipping in ("apart", "folded"):
        module, optimizer = linear_and_optimizer(kind)
        precision = build_precision(spec, CPU, clipping)
        norms = [one_step(precision, module, optimizer, f, clip_norm) for f in (1.0, 0.01, 3.0)]
        assert norms == pytest.approx([NORM, 0.01 * NORM, 3 * NORM], rel=1e-3)
        applied = 0.5 if clip_norm == 0.5 else 3 * NORM
        assert module.weight.grad.norm().item() == pytest.approx(applied, rel=1e-3)
        found.append((norms, module.weight.detach(), module.weight.grad))
        assert getattr(optimizer, "grad_scale", None) is None
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("kind", "clip_norm", "passes"),
    [("adamw", 0.5, 0), ("sgd", 0.5, 0), ("unfused", 0.5, 1), ("unfused", 0.0, 0)],
)
def test_only_fused_kernels_take_the_factor(monkeypatch, kind, clip_norm, passes):
    scale_down = Mock(side_effect=matmul_mode.scale_down)
    monkeypatch.setattr(matmul_mode, "scale_down", scale_down)
    one_step(build_precision(Fp32(), CPU, "folded"), *linear_and_optimizer(kind), 1, clip_norm)
    assert scale_down.call_count == passes


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [(Fp32(), torch.float32), (Bf16(kind="bf16"), torch.bfloat16), (fp16(), torch.float16)],
)
def test_activations_have_the_format_and_gradients_32_bits(spec, dtype):
    module, optimizer = linear_and_optimizer()
    precision = build_precision(spec, CPU)
    with precision.autocast():
        assert module(torch.ones(1, 4)).dtype == dtype
    one_step(precision, module, optimizer)
    assert module.weight.grad.dtype == module.weight.dtype == torch.float32
    assert (precision.report() is None) == (dtype != torch.float16)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fp16_skips_a_step_that_overflows_and_halves_the_scale(kind):
    module, optimizer = linear_and_optimizer(kind)
    precision = build_precision(fp16(initial_scale=1024.0), CPU)
    one_step(precision, module, optimizer)
    weights = module.weight.detach().clone()
    # The largest number of float16 is 65504.
    assert not math.isfinite(one_step(precision, module, optimizer, factor=100.0, clip_norm=1.0))
    assert torch.equal(module.weight, weights)
    assert precision.report() == {"skipped_steps": 1, "loss_scale": 512.0}
    one_step(precision, module, optimizer)
    # The skipped step did not change the moments either.
    straight, its_optimizer = linear_and_optimizer(kind)
    for _ in range(2):
        one_step(build_precision(Fp32(), CPU), straight, its_optimizer)
    torch.testing.assert_close(module.weight, straight.weight)
    assert precision.report() == {"skipped_steps": 1, "loss_scale": 512.0}


def test_fp16_halves_the_scale_when_a_step_overflows_and_doubles_it_after_two_good_ones():
    module, optimizer = linear_and_optimizer()
    precision = build_precision(fp16(initial_scale=2048.0, growth_interval=2), CPU)
    scales = []
    for factor in (1.0, 100.0, 1.0, 1.0, 60.0, 1.0, 1.0):
        one_step(precision, module, optimizer, factor)
        scales.append(precision.report()["loss_scale"])
    assert scales == [2048, 1024, 1024, 2048, 1024, 1024, 2048]
    assert precision.report()["skipped_steps"] == 2


@pytest.mark.parametrize(
    ("precision", "skips"),
    [
        ({"kind": "bf16"}, False),
        ({"kind": "fp16"}, False),
        ({"kind": "fp16", "initial_scale": 2.0**20}, True),
    ],
    ids=["bf16", "fp16", "fp16_that_overflows"],
)
def test_a_training_in_16_bits_follows_that_in_32_and_reports(tmp_path, precision, skips):
    def trained(precision):
        setup = small_setup(small_spec(training={"precision": precision, "steps": 8}))
        watcher = Watcher()
        history = train(setup, watcher, tmp_path, validate_last=False)
        skipped = [row["step"] for row in history.steps if not math.isfinite(row["grad_norm"])]
        return watcher.losses, skipped, setup.precision.report()

    (losses, skipped, report), (exact, *_) = trained(precision), trained({"kind": "fp32"})
    assert losses != exact
    if skips:
        assert 0 < len(skipped) < 8
        assert skipped[0] == 1
        assert report == {"skipped_steps": len(skipped), "loss_scale": 2.0 ** (20 - len(skipped))}
    else:
        assert not skipped
        assert losses == pytest.approx(exact, rel=0.01)


def test_32_bit_products_are_switched_on_whatever_was_before():
    for spec in (Fp32(), Bf16(kind="bf16"), fp16()):
        torch.set_float32_matmul_precision("medium")
        build_precision(spec, CPU)
        assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("spec", "device", "reason"),
    [
        (Tf32(kind="tf32"), CPU, "CUDA devices; this run is on a CPU"),
        (Fp32Onednn(kind="fp32_onednn"), CUDA, "computes on CPUs; this run is on CUDA"),
        (Bf16Matmul(kind="bf16_matmul"), CUDA, "use the precision tf32 or bf16"),
        (Bf16Matmul(kind="bf16_matmul"), CPU, "need a CPU with AMX-BF16"),
    ],
)
def test_products_that_a_device_lacks_are_refused(monkeypatch, spec, device, reason):
    monkeypatch.setattr(matmul_mode, "_rounds_to_bf16", lambda: False)
    with pytest.raises(Unsupported, match=reason):
        build_precision(spec, device)
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_needs_ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(Unsupported, match=r"8\.0 or higher; Some GPU has 7\.5"):
        build_precision(Tf32(kind="tf32"), CUDA)
    assert torch.get_float32_matmul_precision() == "highest"
    for capability in ((8, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        build_precision(Tf32(kind="tf32"), CUDA)
        # Other code reads the older setting; torch raises if only the newer one was made.
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limit is one of x86 CPUs")
def test_a_cpu_without_the_instructions_is_detected():
    code = (
        "import torch\n"
        "from schemas.config.training import Bf16Matmul\n"
        "from transformer_core.training.precision import build_precision\n"
        "build_precision(Bf16Matmul(kind='bf16_matmul'), torch.device('cpu'))"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert "Unsupported: 32-bit matrix products in bfloat16 need a CPU" in done.stderr


def test_bf16_products_round_their_operands_and_nothing_else():
    try:
        build_precision(Bf16Matmul(kind="bf16_matmul"), CPU)
    except Unsupported as error:
        pytest.skip(str(error))
    assert torch.get_float32_matmul_precision() == "medium"
    torch.manual_seed(0)
    x, module = torch.randn(48, 64, requires_grad=True), nn.Linear(64, 32, bias=False)
    y = module(x)
    y.square().sum().backward()
    results = [y, x.grad, module.weight.grad]
    assert all(tensor.dtype == torch.float32 for tensor in results)
    build_precision(Fp32(), CPU)
    rounded = x.bfloat16().float() @ module.weight.bfloat16().float().T
    torch.testing.assert_close(y, rounded, rtol=1e-5, atol=1e-5)
    assert (y - x @ module.weight.T).abs().max() > 1e-4
    gradient = (2 * y).bfloat16().float()
    torch.testing.assert_close(x.grad, gradient @ module.weight.bfloat16().float())
    torch.testing.assert_close(module.weight.grad, gradient.T @ x.bfloat16().float())


ONEDNN = Fp32Onednn(kind="fp32_onednn")
PRODUCT = "mkldnn::_linear_pointwise"


@pytest.fixture
def onednn():
    try:
        matmul_mode.set_matmul(ONEDNN, CPU)
    except Unsupported as error:
        pytest.skip(str(error))


def operators(dtype):
    x, w, b = (torch.randn(*shape, dtype=dtype) for shape in ((8, 4), (6, 4), (6,)))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        F.linear(x, w, b)
    return {event.key for event in found.key_averages()}


def forms(a, b):
    """Arguments of products [n, k] by [k, m] in all layouts and forms of the operator."""
    n, m = len(a), b.size(1)
    torch.manual_seed(1)
    c, row = torch.randn(n, m), torch.randn(m)
    gaps = torch.randn(n, 2 * a.size(1))
    gaps[:, : a.size(1)] = a
    gaps = gaps[:, : a.size(1)]
    rows = torch.zeros(2 * len(b), m)
    rows[::2] = b
    yield a @ b
    yield a.t().contiguous().t() @ b
    yield a @ b.t().contiguous().t()
    yield gaps @ b
    yield a @ rows[::2]
    yield torch.ones(1, 1).expand(n, a.size(1)) @ b
    yield a @ torch.ones(1, 1).expand(len(b), m)
    yield torch.mm(a, b, out=torch.empty(n, m))
    yield torch.mm(a, b, out=torch.empty(m, n).t())
    yield torch.addmm(row, a, b)
    yield torch.addmm(row, a, b, beta=0.5)
    yield torch.addmm(c, a, b, beta=0.5, alpha=2.0)
    yield torch.addmm(c, a, b, out=torch.empty(n, m))
    yield c.clone().addmm_(a, b)
    yield c.clone().addmm_(a, b, beta=0.5, alpha=2.0)
    yield torch.full((n, m), torch.nan).addmm_(a, b, beta=0)
    yield torch.addmm(torch.full((n, m), torch.nan), a, b, beta=0)


@pytest.mark.parametrize(("n", "k", "m"), [(6, 4, 5), (30, 2, 3), (1, 4, 2), (3, 4, 1), (4, 1, 6)])
def test_every_layout_and_form_gives_the_same(onednn, n, k, m):
    torch.manual_seed(0)
    a, b = torch.randn(n, k), torch.randn(k, m)
    mine = list(forms(a, b))
    matmul_mode.set_matmul(Fp32(), CPU)
    torch.testing.assert_close(mine, list(forms(a, b)), rtol=1e-5, atol=1e-5)


def test_onednn_computes_32_bits_until_switched_back(onednn):
    assert PRODUCT in operators(torch.float32)
    assert PRODUCT not in operators(torch.float64) | operators(torch.bfloat16)
    matmul_mode.set_matmul(Fp32(), CPU)
    assert PRODUCT not in operators(torch.float32)


def test_empty_products_are_left_to_torch_and_shapes_that_do_not_fit_refused(onednn):
    assert (torch.zeros(0, 3) @ torch.zeros(3, 2)).shape == (0, 2)
    assert (torch.zeros(2, 0) @ torch.zeros(0, 2)).tolist() == [[0.0, 0.0]] * 2
    with pytest.raises(RuntimeError):
        torch.randn(2, 3) @ torch.randn(4, 5)


def test_a_torch_without_onednn_is_refused(monkeypatch):
    monkeypatch.setattr(
        matmul_mode, "_product", Mock(side_effect=AttributeError("no such operator"))
    )
    with pytest.raises(Unsupported, match=r"fp32_onednn needs .* 2\.9 or newer .* \(no such"):
        matmul_mode.set_matmul(ONEDNN, CPU)


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
        build_precision(Float8(kind="float8"), CPU).convert(nn.Linear(16, 16))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(Unsupported, match=r"mxfp8 needs compute capability 10.0 .*H100 has 9.0"):
        Float8(kind="float8", scaling="mxfp8").convert_maps(nn.Linear(16, 16), CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    with pytest.raises(Unsupported, match="but not for training"):
        Float8(kind="float8", scaling="nvfp4").convert_maps(nn.Linear(16, 16), CUDA)

    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError))
    with pytest.raises(Unsupported, match="pip install torchao"):
        Float8(kind="float8").convert_maps(nn.Linear(16, 16), CUDA)

    @dataclass
    class Config:
        pad_inner_dim: bool = False
        emulate: bool = False
        from_recipe_name = staticmethod(lambda recipe: Config())

    library = SimpleNamespace(
        Float8LinearConfig=Config,
        convert_to_float8_training=lambda model, module_filter_fn, **_: module_filter_fn(model, ""),
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: library)
    Float8(kind="float8").convert_maps(nn.Linear(16, 16), CUDA)
    with pytest.raises(Unsupported, match=r"multiples of 16 .* has none"):
        Float8(kind="float8").convert_maps(nn.Linear(16, 20), CUDA)


@pytest.mark.gpu
def test_tf32_products_on_cuda():
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = (a.double() @ b.double()).float()
    errors = []
    for spec in (Fp32(), Tf32(kind="tf32")):
        build_precision(spec, CUDA)
        errors.append(float((a @ b - exact).abs().max()))
    assert errors[0] < 1e-3 < errors[1] < 0.2


@pytest.mark.gpu
def test_fp16_on_cuda_skips_without_reading_the_device():
    module = nn.Linear(4, 3, bias=False).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, fused=True)
    precision = build_precision(fp16(initial_scale=1024.0), CUDA)
    x = torch.ones(1, 4, device="cuda")
    weights = [module.weight.detach().clone()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for factor in (1.0, 100.0, 1.0):
            optimizer.zero_grad()
            with precision.autocast():
                loss = module(x).float().sum()
            precision.backward(loss * factor)
            precision.step(optimizer, module.parameters(), 1.0)
            weights.append(module.weight.detach().clone())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    changed = [not torch.equal(old, new) for old, new in itertools.pairwise(weights)]
    assert changed == [True, False, True]
    assert precision.report() == {"skipped_steps": 1, "loss_scale": 512.0}
