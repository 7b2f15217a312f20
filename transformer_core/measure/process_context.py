"""The memory a process takes before it has a tensor of any size.

Libraries, code that is loaded when it first runs, threads and, on a GPU, the CUDA context: measured
in a fresh process, ``python -m transformer_core.measure.process_context cpu``, that trains a
model of next to nothing for a step.
"""

import json
import os
import subprocess
import sys
from typing import Any

import psutil
import torch
import torch.distributed as dist

from schemas.config.run_spec import RunSpec
from schemas.results import BatchShape
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.models.registry import build_model
from transformer_core.parallel import nvml
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import equip
from transformer_core.training.loop import optimizer_step

VOCABULARY = 300
SMALL: dict[str, Any] = {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2}


def measured_context(device: torch.device) -> dict[str, int | None]:
    """Bytes on ``device`` of a process of a ``single`` and of a ``distributed`` run: the resident
    set on a CPU, NVML's number on a GPU, null where NVML does not tell."""
    command = [sys.executable, "-m", "transformer_core.measure.process_context", device.type]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int | None] = json.loads(done.stdout)
    return found


def read(device: torch.device, before: dict[str, int]) -> int | None:
    """The memory this process holds now; ``before`` is what the GPUs held when it had nothing."""
    if device.type != "cuda":
        return int(psutil.Process().memory_info().rss)
    torch.cuda.synchronize(device)
    identity = nvml.cuda_uuid(device.index or 0) or ""
    processes = nvml.process_memory(identity)
    used = processes.get(os.getpid())
    # In a container NVML has other numbers for processes, or none. The whole device then tells,
    # unless another job is on it, which may grow meanwhile.
    after = nvml.memory_by_uuid().get(identity)
    if used is None and identity in before and after is not None and len(processes) < 2:
        used = after - before[identity]
    return None if used is None else used - torch.cuda.memory_reserved(device)


def train_a_step(kind: str, device: torch.device) -> None:
    """One step of the small model under a strategy."""
    machine = {"device": device.type, "devices_per_node": 1}
    spec = RunSpec.model_validate(
        {"variant": "context", "model": SMALL, "parallel": {"kind": kind}, "machine": machine}
    )
    process = Process(0, 1, 0, 1, device)
    model = build_model(spec.model, VOCABULARY).to(device)
    strategy = build_strategy(spec.parallel, process, spec.machine, spec.training.accumulation)
    trainer = equip(spec, process, strategy, model)
    shape = BatchShape(rows=2, source_tokens=4, target_tokens=4)
    optimizer_step(trainer, blank_batch([shape], device), 1e-4)


def main() -> None:
    device = torch.device(sys.argv[1])
    before = nvml.memory_by_uuid()
    found = {}
    train_a_step("single", device)
    found["single"] = read(device, before)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    train_a_step("ddp", device)
    found["distributed"] = read(device, before)
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
