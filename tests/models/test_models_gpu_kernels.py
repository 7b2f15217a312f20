"""Triton kernels without a GPU: their numbers by Triton's interpreter, their machine code by its
compiler; and the layers that use them, with torch's operations instead."""

import importlib
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from schemas.config.model import Transformer
from schemas.errors import Unsupported
from transformer_core.models import sublayers
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.loss import _loss_and_gradient
from transformer_core.models.registry import build_model
from transformer_core.techniques.residual_norm import added_and_normalized, by_torch

ROOT = Path(__file__).parents[2]
cases: Any = None
if importlib.util.find_spec("triton"):
    cases = importlib.import_module("tests.models.gpu_kernel_cases")
needs_triton = pytest.mark.skipif(
    cases is None,
    reason="Triton is not installed (pip install triton==3.7.1; it comes with torch for CUDA)",
)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """The results of the kernels by Triton's interpreter, in a process that defines them for it."""
    file = tmp_path_factory.mktemp("kernels") / "found.pt"
    command = [sys.executable, "-m", cases.__name__, str(file)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    triton, numpy = version("triton"), version("numpy")
    if "only 0-dimensional arrays can be converted to Python scalars" in run.stderr:
        pytest.skip(f"the interpreter of Triton {triton} does not take NumPy {numpy}")
    if "mask has unsupported dtype" in run.stderr:  # Compiled, an "and" of two conditions is one.
        pytest.skip(f"the interpreter of Triton {triton} makes numbers of two conditions")
    assert not run.returncode, run.stderr
    return torch.load(file)


class Norm:
    """A normalization with exactly the given weight and bias, not copies."""

    def __init__(self, weight, bias):
        self.weight, self.bias, self.eps = weight, bias, 1e-5
        self.normalized_shape = (len(weight),)


@needs_triton
@pytest.mark.parametrize(("d", "form"), [(48, torch.float32), (64, torch.bfloat16)])
def test_normalization_with_its_residual_has_the_numbers_of_torch(interpreted, d, form):
    expected = cases.norm_results(
        *cases.norm_inputs(d, form),
        lambda residual, x, weight, bias: by_torch(residual, x, Norm(weight, bias), 0.0),
    )
    close = {"rtol": 1e-4, "atol": 1e-5} if form == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(interpreted["norm", d], expected, **close)


@needs_triton
def test_an_unused_sum_contributes_no_gradient(interpreted):
    inputs, _ = cases.norm_inputs(48, torch.float32)
    _, normed = by_torch(*inputs[:2], Norm(*inputs[2:]), 0.0)
    normed.square().sum().backward()
    expected = [t.grad for t in inputs]
    torch.testing.assert_close(interpreted["only_normed"], expected, rtol=1e-4, atol=1e-4)


@needs_triton
def test_the_backward_pass_drops_what_the_forward_pass_dropped(interpreted):
    total, gradient = interpreted["masks"]
    dropped = float((total == 0).float().mean())
    assert dropped == pytest.approx(cases.P, abs=0.03)
    assert torch.equal(total, gradient)
    kept = total[total != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - cases.P)))
    assert not torch.equal(total[0], total[1]), "rows must have different masks"


@needs_triton
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("v", "form"), [(7, torch.float32), (5000, torch.float32), (5000, torch.bfloat16)]
)
def test_the_loss_has_the_numbers_of_torch(interpreted, v, form, padded):
    logits, labels, counted = cases.loss_inputs(v, form)
    expected = _loss_and_gradient(logits, labels, counted if padded else None, 0.1, 2.0)
    losses, gradient = interpreted["loss", v, form, padded]
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-5)
    assert gradient.dtype == form
    torch.testing.assert_close(
        gradient.float(), expected[1], rtol=1e-5 if form == torch.float32 else 2**-7, atol=1e-6
    )


SIGNATURES = {
    "add_and_normalize": (
        {"residual": "*fp32", "x": "*bf16", "weight": "*fp32", "bias": "*fp32", "total": "*fp32"}
        | {"normed": "*bf16", "means": "*fp32", "scales": "*fp32", "d": "i32", "eps": "fp32"}
        | {"p": "fp32", "seed": "i32"},
        {"block": 512, "drops": True},
    ),
    "add_and_normalize_gradient": (
        {"d_total": "*fp32", "d_normed": "*bf16", "total": "*fp32", "weight": "*fp32"}
        | {"means": "*fp32", "scales": "*fp32", "d_residual": "*fp32", "d_x": "*bf16"}
        | {"d_weight": "*fp32", "d_bias": "*fp32", "rows": "i32", "d": "i32", "p": "fp32"}
        | {"seed": "i32", "rows_each": "i32"},
        {"block": 512, "drops": True, "adds": True},
    ),
    "loss_of_row": (
        {"logits": "*bf16", "labels": "*i64", "counted": "*i1", "losses": "*fp32", "v": "i32"}
        | {"share": "fp32", "lift": "fp32"},
        {"padded": True, "block": 4096},
    ),
}
"""Kernels with the formats of a step of the original model in bfloat16."""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [86, 90])
@pytest.mark.parametrize("name", SIGNATURES)
def test_kernels_become_machine_code_without_spills(name, architecture):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from transformer_core.techniques import gpu_kernels

    signature, constants = SIGNATURES[name]
    source = ASTSource(
        getattr(gpu_kernels, name), signature | dict.fromkeys(constants, "constexpr"), constants
    )
    warps = {"num_warps": 8 if name == "loss_of_row" else gpu_kernels._warps(512)}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=warps)
    code = made.asm["ptx"]
    assert f".target sm_{architecture}" in code
    registers, spills = cases.registers_and_spills(code)
    assert spills == 0
    # A multiprocessor has 65,536: at least a third of its 64 warps must fit. Triton 3.7 needs at most
    # 64 registers, Triton 3.9 up to 80.
    assert registers * 32 * 22 <= 65_536


WITH_RESIDUAL = {"norm_method": {"kind": "with_residual"}}


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_with_the_kernel_train_like_those_without(norm, monkeypatch):
    """With torch's operations in place of the kernel, which needs a GPU."""
    calls = []

    def stand_in(residual, x, layer_norm, p, kind, post=False):
        calls.append(kind)
        return by_torch(residual, x, layer_norm, p, post)

    monkeypatch.setattr(sublayers, "added_and_normalized", stand_in)
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0, "norm": norm}
    source, target = torch.randint(4, 50, (2, 3, 7))
    found = []
    for more in ({}, WITH_RESIDUAL):
        torch.manual_seed(0)
        model = build_model(Transformer(**sizes, **more), 50).train()
        model(source, target).square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    # Two encoder layers call it once or twice, two decoder layers twice or three times.
    assert len(calls) == (6 if norm == "pre" else 10)
    build_model(Transformer(**sizes, **WITH_RESIDUAL), 50).eval()(source, target)
    assert len(calls) == (6 if norm == "pre" else 10), "evaluation takes torch's operations"


def test_a_normalized_residual_stream_keeps_its_32_bits(monkeypatch):
    monkeypatch.setattr(sublayers, "device_kind", lambda x: "cuda")
    model = build_model(Transformer(d_model=16, d_ff=32, heads=2, norm="post", **WITH_RESIDUAL), 50)
    with torch.autocast("cpu", torch.bfloat16):
        x = model.encoder[0](torch.randn(2, 3, 16), None)
    assert not torch.equal(x, x.bfloat16().float())


def test_a_cpu_refuses_the_kernel_but_fake_tensors_pass():
    x, norm = torch.zeros(2, 3, 8), nn.LayerNorm(8)
    with pytest.raises(Unsupported, match="with_residual is a kernel of Triton for GPUs"):
        added_and_normalized(x, x, norm, 0.1, "cpu")
    model = build_model(Transformer(d_model=16, d_ff=32, heads=2, **WITH_RESIDUAL), 50).train()
    with laid_out_for("cuda"):
        model(*torch.randint(4, 50, (2, 3, 7)))
