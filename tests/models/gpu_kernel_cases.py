"""Runs cases of the Triton kernels with Triton's interpreter, as a module with the argument FILE and with
TRITON_INTERPRET=1, which must be set when a kernel is defined."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton

from transformer_core.techniques import gpu_kernels

P = 0.3


def norm_inputs(d, form):
    torch.manual_seed(d)
    residual, x = torch.randn(3, 5, d), torch.randn(3, 5, d).to(form)
    weight, bias = torch.randn(d), torch.randn(d)
    return [t.requires_grad_() for t in (residual, x, weight, bias)], torch.randn(2, 3, 5, d)


def norm_results(inputs, factors, apply):
    total, normed = apply(*inputs)
    ((total * factors[0]).sum() + (normed.float() * factors[1]).sum()).backward()
    return [total.detach(), normed.detach(), *(t.grad for t in inputs)]


def masks(rows=64, d=96):
    """The elements dropped forward and backward, from a residual of 0 and an x of 1."""
    x = torch.ones(rows, d, requires_grad=True)
    total, _ = gpu_kernels.AddedAndNormalized.apply(
        torch.zeros(rows, d), x, torch.ones(d), torch.zeros(d), P, 1e-5, 7
    )
    total.sum().backward()
    return total.detach(), x.grad


def loss_inputs(v, form):
    torch.manual_seed(v)
    counted = torch.rand(9) > 0.3
    return (3 * torch.randn(9, v)).to(form), torch.randint(0, v, (9,)), counted


def registers_and_spills(code: str) -> list[int]:
    """Registers of each thread, and bytes of spilled registers."""
    (target,) = re.findall(r"\.target (\w+)", code)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(code)
        file.flush()
        # Triton brings an older and a newer assembler, and writes some code only for the newer one.
        for ptxas in sorted((Path(triton.__file__).parent / "backends/nvidia/bin").glob("ptxas*")):
            command = [str(ptxas), "-v", f"--gpu-name={target}", file.name, "-o", os.devnull]
            run = subprocess.run(command, capture_output=True, text=True)
            if not run.returncode:
                break
        run.check_returncode()
    found = [
        re.search(pattern, run.stderr)
        for pattern in (r"Used (\d+) reg", r"(\d+) bytes spill stores")
    ]
    return [int(match[1]) for match in found if match]


def main():
    found = {"masks": masks()}
    for d, form in ((48, torch.float32), (64, torch.bfloat16)):
        found["norm", d] = norm_results(
            *norm_inputs(d, form), lambda *t: gpu_kernels.AddedAndNormalized.apply(*t, 0.0, 1e-5, 0)
        )
    only_normed, _ = norm_inputs(48, torch.float32)
    _, normed = gpu_kernels.AddedAndNormalized.apply(*only_normed, 0.0, 1e-5, 0)
    normed.square().sum().backward()
    found["only_normed"] = [t.grad for t in only_normed]
    for v, form in ((7, torch.float32), (5000, torch.float32), (5000, torch.bfloat16)):
        for padded in (False, True):
            logits, labels, counted = loss_inputs(v, form)
            found["loss", v, form, padded] = gpu_kernels.loss_and_gradient(
                logits, labels, counted if padded else None, 0.1, 2.0
            )
    torch.save(found, sys.argv[1])


if __name__ == "__main__":
    main()
