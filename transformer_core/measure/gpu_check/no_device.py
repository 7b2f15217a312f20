"""The reason why there is nothing to check here."""

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from transformer_core.parallel.usable_gpus import cuda_fault, require_usable_gpus


def no_device() -> str | None:
    """The reason why no GPU can be used here; None if one can."""
    try:
        require_usable_gpus(Machine(device="cuda"))
    except Unsupported as error:
        return str(error)
    fault = cuda_fault()
    return None if fault is None else f"there is no CUDA device that torch can use: {fault}"
