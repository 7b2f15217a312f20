"""How matrix products of 32-bit tensors are computed inside: a switch of the whole process."""

from functools import cache
from typing import Any

import torch

from schemas.config.training import AnyPrecision
from schemas.errors import Unsupported
from transformer_core.training.precision.onednn_products import take_onednn, take_torchs

_AMPERE = (8, 0)
"""First CUDA compute capability with TensorFloat-32."""
_ONEDNN: Any = torch.backends.mkldnn  # Any: it has attributes that its type does not tell of


def set_matmul(spec: AnyPrecision, device: torch.device) -> None:
    """Switch to the matrix products of ``spec``: in 32 bit unless it asks for others.

    In 32 bit is said explicitly, because an environment variable of some container images
    (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) makes TensorFloat-32 the default.

    Raises Unsupported where ``device`` lacks the format; matrix products are then in 32 bit.
    """
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    _ONEDNN.matmul.fp32_precision = "ieee"
    take_torchs()
    match spec.numbers.matmul:
        case "onednn":
            _require_cpu(device)
            take_onednn()
        case "tf32":
            _require_tf32(device)
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        case "bf16":
            _require_bf16_products(device)
            _ONEDNN.matmul.fp32_precision = "bf16"


def _require_cpu(device: torch.device) -> None:
    if device.type != "cpu":
        raise Unsupported(
            "oneDNN computes on CPUs; this run is on CUDA: take the precision fp32 or tf32"
        )


def _require_tf32(device: torch.device) -> None:
    if device.type != "cuda":
        raise Unsupported("TensorFloat-32 is a format of CUDA devices; this run is on a CPU")
    capability = torch.cuda.get_device_capability(device)
    if capability < _AMPERE:
        raise Unsupported(
            f"TensorFloat-32 needs compute capability {'.'.join(map(str, _AMPERE))} or higher; "
            f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}"
        )


def _require_bf16_products(device: torch.device) -> None:
    if device.type != "cpu":
        raise Unsupported(
            "32-bit matrix products in bfloat16 are a mode of oneDNN on CPUs; on CUDA take the "
            "precision tf32 or bf16"
        )
    # The setting is accepted and ignored on CPUs without the instructions: look at a product.
    _ONEDNN.matmul.fp32_precision = "bf16"
    rounded = _rounds_to_bf16()
    _ONEDNN.matmul.fp32_precision = "ieee"
    if not rounded:
        raise Unsupported(
            "32-bit matrix products in bfloat16 need a CPU with AMX-BF16 (AVX-512 BF16 does "
            "not suffice) and a torch with oneDNN; here they stay in 32 bit"
        )


@cache
def _rounds_to_bf16() -> bool:
    """Whether a matrix product of 32-bit tensors loses the low bits of its operands."""
    n = 128
    ones = torch.ones(n, n)
    # bfloat16 has 8 significant bits: 1 + 2^-10 becomes 1.
    return bool(((ones + 2**-10) @ ones == n).all())
