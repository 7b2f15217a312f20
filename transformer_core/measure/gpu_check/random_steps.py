"""Trains a run spec for a few steps on random tokens, without a corpus."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.autograd import DeviceType

from schemas.config.data import PackedRows
from schemas.config.run_spec import RunSpec
from transformer_core.data.batching.collate import Batch
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.data.tokenizing.special_tokens import BOS, EOS
from transformer_core.machine.peak_memory import reset_peak
from transformer_core.measure.heaviest_batch import global_batch
from transformer_core.models.compiled_layers import replayed_share
from transformer_core.models.registry import build_model
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.settling import settle
from transformer_core.parallel.topology import Process
from transformer_core.training.assemble import Trainer, equip
from transformer_core.training.loop import optimizer_step

VOCABULARY = 30_000
ROWS, WIDTH = 64, 32  # rows of a micro-batch, and tokens of a row on either side


@contextlib.contextmanager
def trainer_of(spec: RunSpec, device: torch.device) -> Iterator[Trainer]:
    """A training of ``spec`` in one process, whatever its world size, on ``device``."""
    torch.manual_seed(spec.training.seed)
    process = Process(0, 1, 0, 1, device)
    settle(device, spec.machine, 0, 1)
    packed = isinstance(spec.batching.rows, PackedRows)
    grouped = not spec.parallel.one_process
    if grouped:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = build_model(spec.model, VOCABULARY, packed).to(device)
        accumulation = spec.training.accumulation
        strategy = build_strategy(spec.parallel, process, spec.machine, accumulation)
        trainer = equip(spec, process, strategy, model)
        trainer.module.train()
        yield trainer
    finally:
        if grouped:
            dist.destroy_process_group()


def random_batch(trainer: Trainer, rows: int = ROWS, width: int = WIDTH) -> GlobalBatch:
    def side() -> torch.Tensor:
        return torch.randint(4, VOCABULARY, (rows, width), device=trainer.device)

    micro_batches = []
    for _ in range(trainer.spec.training.accumulation.micro_batches):
        source, inputs, outputs = side(), side(), side()
        source[:, -1], inputs[:, 0], outputs[:, -1] = EOS, BOS, EOS
        micro_batches.append(Batch(source, inputs, outputs, rows))
    return global_batch(micro_batches)


def three_steps(spec: RunSpec, device: torch.device, **shape: int) -> dict[str, Any]:
    """Seconds, losses and memory of three steps, the number of graph breaks in compiling, and the
    share of layer calls that replayed a recorded graph."""
    counters.clear()
    reset_peak(device)
    with trainer_of(spec, device) as trainer:
        batch = random_batch(trainer, **shape)
        seconds, losses = [], []
        for _ in range(3):
            began = time.perf_counter()
            loss, _ = optimizer_step(trainer, batch, 1e-4)
            losses.append(float(loss) / batch.target_tokens)  # waits for the device
            seconds.append(time.perf_counter() - began)
        finite = all(torch.tensor(losses).isfinite())
        return {
            "status": "ok" if finite else "diverged",
            "reason": None if finite else f"losses {losses}",
            "seconds": seconds,
            "losses": losses,
            "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
            "graph_breaks": sum(counters["graph_break"].values()),
            "graphs": counters["stats"]["unique_graphs"],
            "replayed": replayed_share(trainer.model),
        }


def profiled_step(spec: RunSpec, device: torch.device, **shape: int) -> dict[str, Any]:
    """Kernels of the third step, by their share of the total kernel time."""
    with trainer_of(spec, device) as trainer:
        batch = random_batch(trainer, **shape)
        for _ in range(2):
            optimizer_step(trainer, batch, 1e-4)
        with torch.profiler.profile() as found:
            float(optimizer_step(trainer, batch, 1e-4)[0])
    # Operators count the time of the kernels that they launch, too.
    kernels = [e for e in found.key_averages() if e.device_type == DeviceType.CUDA]
    if not kernels:
        return {"status": "failed", "reason": "the profiler saw no kernel"}
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in kernels)
    shares = {event.key[:80]: event.self_device_time_total / total for event in kernels[:15]}
    launches = sum(event.count for event in kernels)
    return {"device_seconds": total / 1e6, "launches": launches, "shares": shares}
