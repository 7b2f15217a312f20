"""Techniques, one in each file: settings, facts and implementation.

Schemas name them, so they import torch only on demand, and nothing else of the project.
"""

from typing import Any

from schemas.errors import Unsupported


def require_gpu(field: str, x: Any) -> None:
    if not x.is_cuda:
        raise Unsupported(
            f"{field} is a kernel of Triton for GPUs; this run is on a {x.device.type}"
        )


def imported(module: str, needs: str, package: str) -> Any:
    """Imports a module of an optional library; Unsupported if it is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unsupported(f"{needs}: pip install {package}") from None
