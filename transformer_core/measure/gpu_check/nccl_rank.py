"""A rank of a process group of NCCL on the first GPU. Started by
:mod:`transformer_core.measure.gpu_check.device_facts`.

``python -m transformer_core.measure.gpu_check.nccl_rank RANK WORLD_SIZE FOLDER`` adds ones up over
all ranks, and leaves in ``<RANK>.json`` what came of it.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from transformer_core.common.files import write_text
from transformer_core.run.statuses import classify

SECONDS = 30
"""Seconds that ranks wait for one another."""


def added(rank: int, world_size: int, folder: Path) -> float:
    """The sum over all ranks of a one from each."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{(folder / 'meeting').absolute()}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=SECONDS),
        device_id=device,
    )
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    return float(one)


def main() -> None:
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    try:
        outcome = {"status": "ok", "sum": added(rank, world_size, folder)}
    except Exception as error:  # any error is the result
        status, reason = classify(error)
        outcome = {"status": status, "reason": reason}
    write_text(folder / f"{rank}.json", json.dumps(outcome))


if __name__ == "__main__":
    main()
