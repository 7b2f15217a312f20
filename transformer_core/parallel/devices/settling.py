"""What a process that trains sets for itself, whoever started it."""

import sys

import torch

from schemas.config.parallel import Machine
from schemas.errors import Unsupported
from transformer_core.parallel.devices.core_shares import bind_threads

SWITCH_SECONDS = 0.0005
"""How long the thread that prepares batches may keep the interpreter from the one that launches
kernels, each of which takes some microseconds; Python's own choice is 5 ms."""


def settle(device: torch.device, machine: Machine, place: int, places: int) -> None:
    """Take the threads and cores that ``machine`` says for work on ``device``, as process number
    ``place`` of the ``places`` on this host; where that is a GPU, threads take turns often.

    Unsupported where this process cannot have what ``machine`` says.
    """
    if machine.cuda_allocator != "expandable_segments" and device.type != "cuda":
        raise Unsupported(
            f"machine.cuda_allocator: {machine.cuda_allocator} is about memory of CUDA devices; "
            f"this run is on a {device.type.upper()}"
        )
    if machine.threads:
        torch.set_num_threads(machine.threads)
    if machine.affinity == "cores":
        bind_threads(place, places)
    if device.type == "cuda":
        sys.setswitchinterval(SWITCH_SECONDS)
