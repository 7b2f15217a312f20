"""What a process that trains sets for itself, whoever started it."""

import sys

import torch

SWITCH_SECONDS = 0.0005
"""How long the thread that prepares batches may keep the interpreter from the one that launches
kernels, each of which takes some microseconds; Python's own choice is 5 ms."""


def settle(device: torch.device, threads: int) -> None:
    """Take ``threads`` threads of the CPU, or with 0 as many as there are, for work on ``device``;
    where that is a GPU, threads take turns often."""
    if threads:
        torch.set_num_threads(threads)
    if device.type == "cuda":
        sys.setswitchinterval(SWITCH_SECONDS)
