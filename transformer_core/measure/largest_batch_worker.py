"""A trial of a batch size, in each of its processes.

A few optimizer steps on batches of one size under a limit of memory; the size fits if they end.
"""

import json
import resource

import torch

from schemas.config.batching import PackedRows
from schemas.results import BatchShape
from transformer_core.common.files import write_text
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.measure.largest_batch import RESULT, BatchTrialOrder
from transformer_core.models.registry import build_model
from transformer_core.observe.followed_step import watched_step
from transformer_core.parallel.registry import build_strategy
from transformer_core.run.oom import data_bytes
from transformer_core.run.program import Program
from transformer_core.training.assemble import equip

STEPS = 3
"""The optimizer creates its state in the first, and DDP rebuilds its buckets in the second."""


def limit_memory(device: torch.device, limit: int) -> None:
    """Limits this process to ``limit`` bytes: of memory that it can write to, or of the device, for
    torch's allocator. Asking for more fails as on a full device.

    On a device that holds contexts, NCCL's buffers or other processes, what they leave is less.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        limit = min(limit, free + torch.cuda.memory_reserved(device))
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def work(order: BatchTrialOrder, program: Program) -> None:
    """Takes the steps; the main rank writes the largest use of any rank."""
    spec = order.spec
    process = program.process
    device, training = process.device, spec.training
    torch.manual_seed(training.seed)
    if device.type == "cpu":
        limit_memory(device, order.limit)
    model = build_model(
        spec.model, order.vocabulary, isinstance(spec.batching.rows, PackedRows)
    ).to(device)
    strategy = build_strategy(spec.parallel, process, spec.machine, training.accumulation)
    trainer = equip(spec, process, strategy, model)
    trainer.module.train()
    for each in strategy.devices:
        if each.type == "cuda":  # each of those that DataParallel drives, with NCCL's buffers
            limit_memory(each, order.limit)
    _, shares = strategy.share
    rows = -(-order.pairs // (shares * training.accumulation.micro_batches))
    shape = BatchShape(
        rows=rows, source_tokens=order.source_tokens, target_tokens=order.target_tokens
    )
    batch = blank_batch([shape] * training.accumulation.micro_batches, device)
    used = 0

    def watch(moment: str) -> None:
        nonlocal used
        used = max(used, data_bytes())

    for _ in range(STEPS):
        watched_step(trainer, batch, watch)
    if device.type == "cuda":
        used = max(torch.cuda.max_memory_reserved(each) for each in strategy.devices)
    everyone = strategy.gather([used])
    if process.is_main:
        peak = int(max(value for (value,) in everyone))
        write_text(order.output / RESULT, json.dumps({"peak_bytes": peak}))
    strategy.synchronise()
    strategy.close()
