"""The user's environment variables that a script's speed depends on."""

import os
import re
from collections.abc import Mapping

_CHANGES_SPEED = re.compile(
    r"(CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|HIP|ROCR|TRITON|PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|ATEN)_\w+"
    r"|(OMP|KMP|GOMP|MKL|OPENBLAS|GOTO|VECLIB|NUMEXPR|DNNL|ONEDNN)_\w+"
    r"|MALLOC_\w+|GLIBC_TUNABLES|LD_PRELOAD"
)
"""Devices, threads, allocators and libraries that replace others; all settings of torch and the libraries
below it, as new ones appear with each release."""


def variables_of_speed(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of the ``environment``, by name."""
    return {
        name: value for name, value in sorted(environment.items()) if _CHANGES_SPEED.fullmatch(name)
    }
