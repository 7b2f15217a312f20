"""This process's place in the run, and its device; the reason and remedy if torch cannot use a GPU of
the host.

Without these checks, a run with an outdated driver, or a torch without CUDA, would silently train on
the CPU, and report the CPU's numbers as those of the machine.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE, LinkModel, Machine
from schemas.errors import Unsupported
from schemas.results import Gpu, LinkUse, RankPlace, Topology
from transformer_core.parallel import nvml
from transformer_core.parallel.link_times import PAYLOAD_SHARE
from transformer_core.parallel.nvml import busy

_OLDEST_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for each major version of CUDA (NVIDIA, CUDA Compatibility, table "minor
version compatibility")."""

_HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs; the last is Slurm's for a job without any."""


def require_usable_gpus(machine: Machine) -> None:
    """Raises Unsupported if ``machine`` may want GPUs of this host, but torch cannot use them.

    Accepts a host without GPUs, GPUs hidden by CUDA_VISIBLE_DEVICES, and a run that asks for the
    CPU. Ignores GPUs beyond those of the run, which may be older.
    """
    if machine.device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDING:
        return
    if torch.cuda.is_available():
        if torch.version.cuda is None:  # ROCm names its architectures in another way
            return
        for index in range(min(torch.cuda.device_count(), machine.devices_per_node)):
            name = torch.cuda.get_device_name(index)
            capability = torch.cuda.get_device_capability(index)
            if not has_kernels(capability, torch.cuda.get_arch_list()):
                raise Unsupported(_too_old(name, capability))
        return
    found, _ = nvml.gpus()
    if found:
        raise Unsupported(_unseen(found))


def cuda_fault() -> str | None:
    """torch's reason for not using CUDA, such as an outdated driver; None if it can. Works even if
    NVML finds no GPU, or is missing."""
    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().split("\n")[0]
    return "torch.cuda.is_available() is false"


def fsdp_fault(device_type: str) -> str | None:
    """Why this torch cannot divide weights among ranks.

    Before 2.7, ``distribute_tensor`` has no ``src_data_rank``. Before 2.9, gloo's reduce_scatter
    gives the sum if it is asked for the average, so FSDP's gradients would be too large.
    """
    needed = (2, 7) if device_type == "cuda" else (2, 9)
    major, minor, *_ = torch.__version__.split(".")
    if (int(major), int(minor)) >= needed:
        return None
    least = ".".join(map(str, needed))
    return f"dividing weights needs torch {least} or newer; this is {torch.__version__}: use DDP"


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a torch built for ``architectures`` (``sm_90``, ``compute_90``) runs on a device.

    Machine code runs on devices of the same major and the same or a later minor version; the
    intermediate code of an older architecture is compiled for any later device (CUDA C++
    Programming Guide, "Binary Compatibility" and "PTX Compatibility").
    """
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        digits = digits.rstrip("af")  # suffixes of code for one architecture only
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
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        seen = f"CUDA_VISIBLE_DEVICES is {chosen!r}: does it name one of them? T{seen[1:]}"
    oldest = _OLDEST_DRIVER.get(int(version.split(".")[0]))
    needed = f", which needs driver {oldest} or newer" if oldest else ""
    return (
        f"{seen}{torch.__version__} sees none of them. It was built for CUDA {version}{needed}. "
        "Update the driver, install a torch built for an older CUDA, or set machine.device: cpu to "
        "train on the CPU on purpose"
    )


@dataclass(frozen=True)
class Process:
    """One process of a run, as torchrun's environment describes it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def nodes(self) -> int:
        return self.world_size // self.local_world_size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def among(self, machine: Machine) -> tuple[int, int]:
        """Its number among the processes of this machine, and the number of these processes."""
        if machine.link is not None:  # one machine emulates all hosts
            return self.rank, self.world_size
        return self.local_rank, self.local_world_size

    @property
    def place(self) -> RankPlace:
        return RankPlace(
            rank=self.rank,
            local_rank=self.local_rank,
            node_rank=self.rank // self.local_world_size,
            host=os.environ.get(HOST_VARIABLE) or socket.gethostname(),
            device=str(self.device),
        )

    def describe(
        self, backend: str | None, ranks: Sequence[RankPlace], link: LinkUse | None
    ) -> Topology:
        return Topology.model_validate(
            {
                "device": self.device.type,
                "backend": backend,
                "world_size": self.world_size,
                "local_world_size": self.local_world_size,
                "nodes": self.nodes,
                "threads_per_rank": torch.get_num_threads(),
                "ranks": ranks,
                "link": link,
            }
        )


def link_in_use(machine: Machine) -> LinkUse | None:
    """The limited link with which this process was started; None without one."""
    if machine.link is None:
        return None
    # The launcher of the hosts sets it; without it there is no limit, despite the run spec.
    kind = os.environ.get(LINK_VARIABLE)
    if kind is None:
        raise RuntimeError(
            f"the run spec asks for a link, but {LINK_VARIABLE} does not say that one was made"
        )
    return LinkUse.model_validate({"kind": kind, "bandwidth": machine.link.bandwidth})


def emulated_link(machine: Machine) -> LinkModel | None:
    """The link that the strategy must emulate by slowing its messages; None if the link is real."""
    use = link_in_use(machine)
    if use is None or use.kind != "emulated":
        return None
    return LinkModel(bandwidth=PAYLOAD_SHARE * use.bandwidth)


def this_process(machine: Machine, processes_per_node: int) -> Process:
    """The process that torchrun's environment describes; without one, a single process.

    Raises Unsupported if the devices that ``machine`` asks for are missing, reserved by another
    process, or unusable with this torch, and RuntimeError if the environment contradicts ``machine``.
    """
    require_usable_gpus(machine)
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if (local_world_size, world_size) != (processes_per_node, machine.nodes * processes_per_node):
        raise RuntimeError(
            f"started as {local_world_size} of {world_size} processes, but the run spec asks for "
            f"{machine.nodes} nodes x {processes_per_node} processes"
        )
    device = _device(machine, local_rank)
    return Process(rank, world_size, local_rank, local_world_size, device)


def _device(machine: Machine, local_rank: int) -> torch.device:
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if machine.device == "cpu" or (machine.device == "auto" and found == 0):
        return torch.device("cpu")
    needed = machine.devices_per_node
    if found < needed:
        text = f"needs {needed} CUDA device{'s'[: needed > 1]}, this host has {found}"
        fault = cuda_fault()
        raise Unsupported(text if fault is None else f"{text}: {fault}")
    try:
        torch.cuda.set_device(local_rank)
    except RuntimeError as error:
        if reason := busy(error):
            raise Unsupported(reason) from error
        raise
    return torch.device("cuda", local_rank)
