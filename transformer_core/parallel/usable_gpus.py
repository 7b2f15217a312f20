"""Whether the installed torch can use the GPUs of a host; if not, the reason and the remedy.

Without this, a driver that is too old, or a torch without CUDA, would train on the CPU without a
word, and report the CPU's numbers as those of the machine.
"""

import os
from collections.abc import Sequence

import torch

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from schemas.results import Gpu
from transformer_core.parallel import nvml

_OLDEST_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for each major version of CUDA (NVIDIA, CUDA Compatibility, table "minor
version compatibility")."""


def require_usable_gpus(machine: Machine) -> None:
    """Raise Unsupported where ``machine`` could mean GPUs that are there but that torch cannot use.

    A host without GPUs, one whose GPUs are hidden by CUDA_VISIBLE_DEVICES, and a run that asks for
    the CPU pass.
    """
    if machine.device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(index)
            capability = torch.cuda.get_device_capability(index)
            if not has_kernels(capability, torch.cuda.get_arch_list()):
                raise Unsupported(_too_old(name, capability))
        return
    found, _ = nvml.gpus()
    if found:
        raise Unsupported(_unseen(found))


def cuda_fault() -> str | None:
    """The reason that torch gives for not using CUDA, such as a driver that is too old; None if it
    can. NVML may know of no GPU then, or may not be there."""
    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().split("\n")[0]
    return "torch.cuda.is_available() is false"


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a torch built for ``architectures`` (``sm_90``, ``compute_90``) runs on a device.

    Machine code runs on devices of the same major and the same or a later minor version; the
    intermediate code of an older architecture is compiled for any later device (CUDA C++
    Programming Guide, "Binary Compatibility" and "PTX Compatibility").
    """
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        digits = digits.rstrip("af")  # features of one architecture only
        version = int(digits[:-1]), int(digits[-1])
        same = version[0] == capability[0] and version[1] <= capability[1]
        if same or (kind == "compute" and version <= capability):
            return True
    return False


def _too_old(name: str, capability: tuple[int, int]) -> str:
    major, minor = capability
    built = ", ".join(torch.cuda.get_arch_list())
    return (
        f"{name} has compute capability {major}.{minor}, for which torch {torch.__version__} "
        f"(CUDA {torch.version.cuda}) has no kernels: it was built for {built}. Install a torch "
        "built for an older CUDA, or set machine.device: cpu"
    )


def _unseen(found: Sequence[Gpu]) -> str:
    seen = f"the driver {found[0].driver} lists {len(found)} GPUs ({found[0].name}), but torch "
    version = torch.version.cuda
    if version is None:
        return (
            f"{seen}{torch.__version__} was built without CUDA. Install a CUDA build of torch, or "
            "set machine.device: cpu to train on the CPU on purpose"
        )
    oldest = _OLDEST_DRIVER.get(int(version.split(".")[0]))
    needed = f", which needs driver {oldest} or newer" if oldest else ""
    return (
        f"{seen}{torch.__version__} sees none of them. It was built for CUDA {version}{needed}. "
        "Renew the driver, install a torch built for an older CUDA, or set machine.device: cpu to "
        "train on the CPU on purpose"
    )
