"""One process of a trial of a batch size. Started by :mod:`transformer_core.measure.largest_batch`.

A few optimizer steps on batches of one size under a limit of memory; the size fits if they end.
"""

import argparse
import json
import resource
from pathlib import Path

import torch

from schemas.data import PackedRows
from schemas.results import BatchShape
from schemas.study import RunSpec
from transformer_core.data.files import write_text
from transformer_core.measure.followed_step import watched_step
from transformer_core.measure.heaviest import blank_batch
from transformer_core.measure.largest_batch import RESULT
from transformer_core.measure.out_of_memory import data_bytes
from transformer_core.measure.outcome import supervised
from transformer_core.model.build import build_model
from transformer_core.parallel.build import build_strategy
from transformer_core.parallel.topology import this_process
from transformer_core.train.assemble import equip

STEPS = 3
"""The optimizer makes its state in the first, DDP its buckets anew in the second."""


def limit_memory(device: torch.device, limit: int) -> None:
    """Let this process have no more than ``limit`` bytes: of memory that it can write to, or of the
    device, for torch's allocator. Asking for more fails as on a full device."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    else:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def run(arguments: argparse.Namespace) -> None:
    """Take the steps; the main rank writes the largest use of any rank."""
    spec = RunSpec.model_validate_json(arguments.spec.read_text())
    process = this_process(spec.machine, spec.processes_per_node)
    device, training = process.device, spec.training
    if spec.machine.threads:
        torch.set_num_threads(spec.machine.threads)
    torch.manual_seed(training.seed)
    limit_memory(device, arguments.limit)
    model = build_model(
        spec.model, arguments.vocabulary, isinstance(spec.batching.rows, PackedRows)
    ).to(device)
    strategy = build_strategy(spec.parallel, process, spec.machine, training.accumulation)
    trainer = equip(spec, process, strategy, model)
    trainer.module.train()
    _, shares = strategy.share
    rows = -(-arguments.pairs // (shares * training.accumulation.micro_batches))
    shape = BatchShape(
        rows=rows, source_tokens=arguments.source_tokens, target_tokens=arguments.target_tokens
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
        write_text(arguments.output / RESULT, json.dumps({"peak_bytes": peak}))
    strategy.synchronise()
    strategy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--source-tokens", type=int, required=True)
    parser.add_argument("--target-tokens", type=int, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with supervised(arguments.output):
        run(arguments)


if __name__ == "__main__":
    main()
