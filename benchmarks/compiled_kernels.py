"""Do the kernels of torch.compile's layers spill registers on a GPU? Compiles them without one.

python -m benchmarks.compiled_kernels

Inductor can write its kernels in Triton even for a CPU. Here Triton compiles them for GPUs, but we do
not run them, so their results are arbitrary. Prints a line of JSON: registers of a thread and bytes
of spilled registers, by kernel. More than 16 bytes are too many: the compiler itself drops such
configurations. One architecture is enough: the layers do not depend on it.
"""

import json
import sys
from typing import Any

import torch
import torch._inductor.config as inductor
import triton
from torch._inductor.runtime import triton_heuristics
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from schemas.config.model import Transformer
from tests.models.gpu_kernel_cases import registers_and_spills
from transformer_core.models.device_kind import laid_out_for
from transformer_core.models.registry import build_model

GPU = GPUTarget("cuda", 90, 32)
FOUND: dict[str, list[int]] = {}
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 512, "d_ff": 2048, "heads": 8}


class NoDriver:
    """Stands in for the driver of a GPU."""

    def get_current_target(self) -> GPUTarget:
        return GPU

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_device(self) -> int:
        return 0


def compiled(kernel: triton_heuristics.CachingAutotuner, *_: Any, **__: Any) -> None:
    """Compiles the first of the configurations from which a GPU would choose."""
    meta, config = kernel.triton_meta, kernel.configs[0]
    signature = dict(meta["signature"])
    constants = {name: value for name, value in config.kwargs.items() if name in signature}
    constants |= {
        name: meta["constants"].get(name)
        for name, kind in signature.items()
        if kind == "constexpr" and name not in constants
    }
    made = triton.compile(
        ASTSource(kernel.fn, signature, constants),
        target=GPU,
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    FOUND[kernel.fn.__name__] = registers_and_spills(made.asm["ptx"])


def main() -> None:
    triton.runtime.driver.set_active(NoDriver())
    inductor.cpu_backend = "triton"
    inductor.compile_threads = 1
    inductor.fx_graph_cache = False
    triton_heuristics.CachingAutotuner.precompile = compiled
    triton_heuristics.CachingAutotuner.run = lambda *_, **__: None
    model = build_model(Transformer.model_validate(SIZES | {"compile": "layers"}), 50).train()
    source, target = torch.randint(4, 50, (2, 4, 16))
    memory = torch.randn(4, 16, SIZES["d_model"], requires_grad=True)
    with laid_out_for("cuda"), torch.autocast("cpu", torch.bfloat16):
        # A layer of the decoder has all parts of one of the encoder.
        loss = model.decode(memory, source, target).float().sum()
    loss.backward()
    json.dump(FOUND, sys.stdout)


if __name__ == "__main__":
    main()
