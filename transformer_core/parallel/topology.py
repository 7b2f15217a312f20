"""Which process this is, and which device it works on."""

import os
from dataclasses import dataclass

import torch

from schemas.errors import Unsupported
from schemas.parallel import Machine
from schemas.results import Topology


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
        """Hosts of the run."""
        return self.world_size // self.local_world_size

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def describe(self, backend: str | None) -> Topology:
        """The topology as the results record it."""
        return Topology.model_validate(
            {
                "device": self.device.type,
                "backend": backend,
                "world_size": self.world_size,
                "local_world_size": self.local_world_size,
                "nodes": self.nodes,
                "threads_per_rank": torch.get_num_threads(),
            }
        )


def this_process(machine: Machine, processes_per_node: int) -> Process:
    """The process described by torchrun's environment; a lone process without one.

    Raises Unsupported where the devices that ``machine`` asks for are not there, and RuntimeError
    where the environment contradicts it.
    """
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if (local_world_size, world_size) != (
        processes_per_node,
        machine.nodes * processes_per_node,
    ):
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
        raise Unsupported(f"needs {needed} CUDA device{'s'[: needed > 1]}, this host has {found}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
