"""Runs a function in several processes with a process group."""

import pickle
import re
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, backend: str = "gloo"
) -> list[Any]:
    """The results of ``function(*args)`` in each of ``world_size`` processes, in order of rank.

    The function must be a module-level one; the process group exists when it starts. An exception
    in one rank ends the others and is raised here, with its traceback, as ProcessRaisedException. The
    test skips if the function needs a newer torch.
    """
    # A server that has imported everything (see conftest.py) forks the processes, so they start at
    # once and without the threads of this process.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            mp.start_processes(
                _rank,
                (function, world_size, args, folder, backend),
                nprocs=world_size,
                start_method="forkserver",
            )
        except mp.ProcessRaisedException as error:
            if needs := re.search(r"Unsupported: (.* needs torch .*)", str(error)):
                pytest.skip(needs[1])
            raise
        return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(world_size)]


def _rank(
    rank: int,
    function: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    folder: Path,
    backend: str,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
    )
    try:
        result = function(*args)
        (folder / f"{rank}").write_bytes(pickle.dumps(result))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
