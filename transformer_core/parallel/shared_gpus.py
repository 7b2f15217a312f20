"""Whether several processes may use a GPU at the same time, and whether one may now.

Nothing here imports torch: supervisors use it.
"""

from schemas.errors import Unsupported
from transformer_core.parallel import nvml


def require_shared_gpus(processes: int) -> None:
    """Raise Unsupported where ``processes`` processes are to use a GPU that lets in only one."""
    exclusive = nvml.exclusive_gpus() if processes > 1 else []
    if exclusive:
        raise Unsupported(
            f"{processes} processes take turns on a GPU, but GPU {exclusive[0]} is in "
            f"exclusive-process mode, which refuses the second. {_remedy(str(exclusive[0]))}"
        )


_BUSY = "busy or unavailable"
"""CUDA's message when a GPU refuses this process (cudaErrorDevicesUnavailable)."""


def busy(error: BaseException) -> str | None:
    """The cause and its remedy, if ``error`` says that a GPU refuses this process."""
    if not isinstance(error, RuntimeError) or _BUSY not in str(error):
        return None
    exclusive = nvml.exclusive_gpus()
    if not exclusive:
        return (
            "a GPU is busy or unavailable: another process may have it for itself, or compute "
            "work is prohibited on it (nvidia-smi -q -d COMPUTE shows its compute mode)"
        )
    return (
        f"GPU {exclusive[0]} is in exclusive-process mode, and another process has it. End that "
        f"one (nvidia-smi lists it). {_remedy(str(exclusive[0]))}"
    )


def _remedy(index: str) -> str:
    return (
        f"Allow more of them (nvidia-smi -i {index} -c DEFAULT, as root), or start the CUDA "
        "Multi-Process Service (nvidia-cuda-mps-control -d)"
    )
