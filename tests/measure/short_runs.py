"""Short runs of tiny models, like those of certificates."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from schemas.config.run_spec import RunSpec
from tests.training.small_training import small_store
from transformer_core.certify.short_run_worker import Recorded, record
from transformer_core.parallel.topology import Process


class Silent:
    """Accepts every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def this_rank() -> Process:
    """This process's rank in the process group, or a single process without one; on the CPU."""
    joined = dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    return Process(rank, size, rank, size, torch.device("cpu"))


def recorded(spec: RunSpec, folder: Path, checked: bool = True) -> Recorded:
    """The record of a short run of this rank; its weights are saved in ``folder``."""
    stores = small_store(), small_store(9, seed=1)
    return record(spec, this_rank(), stores, folder, save_weights=True, checked=checked)
