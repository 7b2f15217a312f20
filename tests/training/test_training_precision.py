import contextlib
import itertools
import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from schemas.config.training import Bf16, Bf16Matmul, Fp16, Fp32, Tf32
from schemas.errors import Unsupported
from tests.distributed import run_ranks
from tests.training.small_training import Stopped, Watcher, small_setup, small_spec
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


def modes():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


def linear_and_optimizer(kind="adamw"):
    torch.manual_seed(3)
    module = nn.Linear(4, 3, bias=False)
    parameters = module.parameters()
    match kind:
        case "adamw":
            return module, torch.optim.AdamW(parameters, lr=0.01, fused=True)
        case "unfused":
            return module, torch.optim.AdamW(parameters, lr=0.01)
        case "sgd":
            return module, torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def one_step(precision, module, optimizer, factor=1.0, clip_norm=0.0):
    """A step whose gradient is ``factor`` for every weight; returns the norm."""
    optimizer.zero_grad()
    with precision.autocast():
        loss = module(torch.ones(1, 4)).float().sum()
    precision.backward(loss * factor)
    return float(precision.step(optimizer, module.parameters(), clip_norm))


NORM = math.sqrt(12)
"""Of the gradient of :func:`one_step`, with a factor of 1: twelve ones."""


@pytest.mark.parametrize("spec", [Fp32(), Bf16(kind="bf16"), fp16(initial_scale=1024.0)])
@pytest.mark.parametrize(("clip_norm", "applied"), [(0.0, NORM), (0.5, 0.5), (100.0, NORM)])
def test_norm_is_that_of_the_true_gradient_before_clipping(spec, clip_norm, applied):
    module, optimizer = linear_and_optimizer("sgd")
    before = module.weight.detach().clone()
    norm = one_step(build_precision(spec, CPU), module, optimizer, clip_norm=clip_norm)
    assert norm == pytest.approx(NORM, rel=1e-3)
    assert torch.dist(before, module.weight.detach()).item() == pytest.approx(
        0.01 * applied, rel=1e-3
    )


@pytest.mark.parametrize("kind", ["adamw", "unfused", "sgd"])
@pytest.mark.parametrize("spec", [Fp32(), Bf16(kind="bf16"), fp16(initial_scale=8.0)])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 100.0])
def test_clipping_in_the_optimizer_changes_nothing_but_where(kind, spec, clip_norm):
    found = []
    for clipping in ("apart", "folded"):
        module, optimizer = linear_and_optimizer(kind)
        precision = build_precision(spec, CPU, clipping)
        norms = [one_step(precision, module, optimizer, f, clip_norm) for f in (1.0, 0.01, 3.0)]
        found.append((norms, module.weight.detach(), module.weight.grad))
        assert getattr(optimizer, "grad_scale", None) is None
    torch.testing.assert_close(found[1], found[0])


def test_only_fused_kernels_take_the_factor(monkeypatch):
    passes = []
    clip = matmul_mode.scale_down
    monkeypatch.setattr(matmul_mode, "scale_down", lambda *a: passes.append(a) or clip(*a))
    for kind, clip_norm, expected in (
        ("adamw", 0.5, 0), ("sgd", 0.5, 0), ("unfused", 0.5, 1), ("unfused", 0.0, 0)
    ):  # fmt: skip
        passes.clear()
        one_step(build_precision(Fp32(), CPU, "folded"), *linear_and_optimizer(kind), 1, clip_norm)
        assert len(passes) == expected, kind


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


@pytest.mark.parametrize("kind", ["adamw", "unfused", "sgd"])
def test_fp16_skips_a_step_that_overflows_and_halves_the_scale(kind):
    module, optimizer = linear_and_optimizer(kind)
    precision = build_precision(fp16(initial_scale=1024.0), CPU)
    one_step(precision, module, optimizer)
    weights = module.weight.detach().clone()
    # float16 ends at 65504.
    assert not math.isfinite(one_step(precision, module, optimizer, factor=100.0, clip_norm=1.0))
    assert torch.equal(module.weight, weights)
    assert precision.report() == {"skipped_steps": 1, "loss_scale": 512.0}
    one_step(precision, module, optimizer)
    # The skipped step left no trace in the moments either.
    straight, its_optimizer = linear_and_optimizer(kind)
    for _ in range(2):
        one_step(build_precision(Fp32(), CPU), straight, its_optimizer)
    torch.testing.assert_close(module.weight, straight.weight)
    assert precision.report() == {"skipped_steps": 1, "loss_scale": 512.0}


def test_fp16_saves_gradients_that_float16_would_lose():
    tiny = 2.0**-30
    for scale, kept in [(1.0, False), (65536.0, True)]:
        module, optimizer = linear_and_optimizer()
        norm = one_step(build_precision(fp16(initial_scale=scale), CPU), module, optimizer, tiny)
        assert norm == (pytest.approx(tiny * NORM, rel=1e-2) if kept else 0.0)


def test_fp16_state_goes_on_where_it_was():
    settings = fp16(initial_scale=2048.0, growth_interval=2)
    factors = [1.0, 100.0, 1.0, 1.0, 60.0, 1.0, 1.0]

    def run(stop):
        module, optimizer = linear_and_optimizer()
        precision = build_precision(settings, CPU)
        scales = []
        for number, factor in enumerate(factors):
            if number == stop:
                state = json.loads(json.dumps(precision.state()))
                precision = build_precision(settings, CPU)
                precision.load(state)
            one_step(precision, module, optimizer, factor)
            scales.append(precision.report())
        return scales, module.weight

    whole, weights = run(stop=None)
    # Halved where a step overflows, doubled after two good ones.
    assert [said["loss_scale"] for said in whole] == [2048, 1024, 1024, 2048, 1024, 1024, 2048]
    assert whole[-1]["skipped_steps"] == 2
    for stop in range(1, len(factors)):
        resumed, its_weights = run(stop)
        assert resumed == whole
        assert torch.equal(its_weights, weights)


def training(precision, **sections):
    return small_spec(training={"precision": precision, "steps": 8} | sections)


def losses_of(setup, checkpoints, stop_at=0):
    """The losses by step of a training, which ends early where ``stop_at`` says so."""
    watcher = Watcher(stop_at)
    with contextlib.suppress(Stopped):
        train(setup, watcher, checkpoints, validate_last=False)
    return watcher.losses


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_a_training_in_16_bits_follows_that_in_32(tmp_path, kind):
    reference = losses_of(small_setup(training({"kind": "fp32"})), tmp_path / "32")
    losses = losses_of(small_setup(training({"kind": kind})), tmp_path / "16")
    for step, loss in reference.items():
        assert losses[step] == pytest.approx(loss, rel=0.01)
    assert losses != reference


def test_a_training_in_fp16_skips_resumes_and_reports(tmp_path):
    spec = training({"kind": "fp16", "initial_scale": 2.0**20}, checkpoint_every=2)
    setup = small_setup(spec)
    history = train(setup, watcher := Watcher(), tmp_path / "whole")
    report = setup.precision.report()
    skipped = [row["step"] for row in history.steps if not math.isfinite(row["grad_norm"])]
    assert 0 < report["skipped_steps"] == len(skipped) < 8
    assert report["loss_scale"] == 2.0 ** (20 - len(skipped))
    assert skipped[0] == 1

    losses_of(small_setup(spec), tmp_path / "parts", stop_at=2)
    setup = small_setup(spec)
    resumed = Watcher()
    train(setup, resumed, tmp_path / "parts")
    assert resumed.started_at == [2]
    assert resumed.losses == watcher.losses
    assert setup.precision.report() == report


def overflow_in_one_rank(strategy):
    """Three steps in fp16 where rank 1 alone overflows in the second; report, weights."""
    spec = small_spec(
        parallel={"kind": strategy},
        machine={"devices_per_node": 2},
        training={"precision": {"kind": "fp16", "initial_scale": 256.0}},
    )
    setup = small_setup(spec)
    batches = setup.feed.batches()
    norms = []
    for step in range(1, 4):
        micro = next(batches).micro_batches[0]
        factor = 1e9 if (step, setup.process.rank) == (2, 1) else 1e-2
        setup.optimizer.param_groups[0]["lr"] = 1e-3
        setup.optimizer.zero_grad()
        with setup.precision.autocast():
            loss = setup.module(micro.source, micro.target_input, micro.target_output)
        setup.precision.backward(loss * factor)
        parameters = setup.module.parameters()
        norms.append(float(setup.precision.step(setup.optimizer, parameters, 1.0)))
    weights = [
        getattr(p, "full_tensor", lambda p=p: p)().detach() for p in setup.model.parameters()
    ]
    finite = all(bool(weight.isfinite().all()) for weight in weights)
    return norms, setup.precision.report(), sum(float(w.double().sum()) for w in weights), finite


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_skip_the_same_fp16_steps(strategy):
    results = run_ranks(overflow_in_one_rank, 2, strategy)
    for norms, report, _, finite in results:
        assert [math.isfinite(norm) for norm in norms] == [True, False, True]
        assert report == {"skipped_steps": 1, "loss_scale": 128.0}
        assert finite
    assert repr(results[0]) == repr(results[1])


def test_32_bit_products_are_switched_on_whatever_was_before():
    for spec in (Fp32(), Bf16(kind="bf16"), fp16()):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        build_precision(spec, CPU)
        assert modes() == ("ieee", "ieee")


@pytest.mark.parametrize(
    ("spec", "device", "reason"),
    [
        (Tf32(kind="tf32"), CPU, "CUDA devices; this run is on a CPU"),
        (Bf16Matmul(kind="bf16_matmul"), CUDA, "take the precision tf32 or bf16"),
        (Bf16Matmul(kind="bf16_matmul"), CPU, "need a CPU with AMX-BF16"),
    ],
)
def test_products_that_a_device_does_not_have_are_refused(monkeypatch, spec, device, reason):
    monkeypatch.setattr(matmul_mode, "_rounds_to_bf16", lambda: False)
    with pytest.raises(Unsupported, match=reason):
        build_precision(spec, device)
    assert modes() == ("ieee", "ieee")


@pytest.mark.parametrize(
    ("capability", "known"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)]
)
def test_tf32_needs_ampere(monkeypatch, capability, known):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    if known:
        build_precision(Tf32(kind="tf32"), CUDA)
        # Compilers and users' code read it: torch raises where only the newer setting was made.
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
        assert modes() == ("tf32", "ieee")
    else:
        with pytest.raises(Unsupported, match=r"8\.0 or higher; Some GPU has 7\.5"):
            build_precision(Tf32(kind="tf32"), CUDA)
        assert modes() == ("ieee", "ieee")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limit is one of x86 CPUs")
def test_a_cpu_without_the_instructions_is_found_out():
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
    assert modes() == ("ieee", "bf16")
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
