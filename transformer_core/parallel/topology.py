"""This process's place in the run, and its device."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from schemas.config.parallel import HOST_VARIABLE, LINK_VARIABLE, LinkModel, Machine
from schemas.errors import Unsupported
from schemas.results import LinkUse, RankPlace, Topology
from transformer_core.parallel.link_times import PAYLOAD_SHARE
from transformer_core.parallel.shared_gpus import busy
from transformer_core.parallel.usable_gpus import cuda_fault, require_usable_gpus


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

    def among(self, machine: Machine) -> tuple[int, int]:
        """Its number among the processes of this machine, and how many those are."""
        if machine.link is not None:  # its hosts are emulated on one machine
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
        """The topology as the results record it."""
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
    """The limited link that this process was started with; null without one."""
    if machine.link is None:
        return None
    # Set by the launcher of the hosts: without it there is no limit, whatever the run spec says.
    kind = os.environ.get(LINK_VARIABLE)
    if kind is None:
        raise RuntimeError(
            f"the run spec asks for a link, but {LINK_VARIABLE} does not say that one was made"
        )
    return LinkUse.model_validate({"kind": kind, "bandwidth": machine.link.bandwidth})


def emulated_link(machine: Machine) -> LinkModel | None:
    """The link to which the strategy must slow its messages; null if the link is real."""
    use = link_in_use(machine)
    if use is None or use.kind != "emulated":
        return None
    return LinkModel(bandwidth=PAYLOAD_SHARE * use.bandwidth)


def this_process(machine: Machine, processes_per_node: int) -> Process:
    """The process described by torchrun's environment; a lone process without one.

    Raises Unsupported where the devices that ``machine`` asks for are not there, let nobody else
    in or cannot be used by this torch, and RuntimeError where the environment contradicts it.
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
