"""Techniques that stand in one file each: settings, facts and implementation.

Schemas name them, so they import no torch before they are used, and nothing else of the project.
"""

from typing import Any

from schemas.errors import Unsupported


def require_gpu(field: str, x: Any) -> None:
    if not x.is_cuda:
        raise Unsupported(
            f"{field} is a kernel of Triton for GPUs; this run is on a {x.device.type}"
        )


def imported(module: str, needs: str, package: str) -> Any:
    """A module of a library that is optional; Unsupported where it is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unsupported(f"{needs}: pip install {package}") from None
