"""Predicts the memory that run specs need, without running them.

The tensors are counted in a step and a validation on tensors without memory. Without the corpus,
batches are the largest that the settings allow. The rest of a process (libraries, code loaded on
first use, threads and, on a GPU, the CUDA context) is measured once on this machine: ``python -m
transformer_core.measure.predicted_memory cpu`` trains a tiny model for one step.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from schemas.config.parallel import DataParallel, Ddp
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results import BatchShape, PredictedMemory, Prediction, ShardManifest
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.data.sharding.shard_store import PairStore, open_shards
from transformer_core.machine.hardware import read_hardware
from transformer_core.measure.heaviest_batch import blank_batch
from transformer_core.measure.memory_fit import doubt, gpu_bytes
from transformer_core.measure.memory_prediction import predict_ranks
from transformer_core.models.registry import build_model
from transformer_core.parallel import nvml
from transformer_core.parallel.registry import build_strategy
from transformer_core.parallel.topology import Process
from transformer_core.run.oom import plain_size
from transformer_core.run.order import shard_manifests
from transformer_core.run.statuses import classify
from transformer_core.training.assemble import equip
from transformer_core.training.loop import optimizer_step

Contexts = dict[str, dict[str, int | None]]
"""Bytes that a process takes, by kind of device, then by kind of run."""


def predict(
    spec: RunSpec,
    vocabulary: int,
    stores: tuple[PairStore, PairStore] | None = None,
    contexts: Contexts | None = None,
) -> Prediction:
    """Predicts the memory that a run of ``spec`` needs on each device; if that is impossible, the
    status has the reason."""
    began = time.perf_counter()
    device = device_of(spec)
    alone = "single" if spec.world_size == 1 else "distributed"
    record: dict[str, Any] = {
        "variant": spec.variant,
        "device": device.type,
        "context_bytes": (contexts or {}).get(device.type, {}).get(alone),
        "capacity_bytes": capacity(spec, device),
        "notes": notes(spec, device),
    }
    try:
        ranks, parameters = predict_ranks(spec, vocabulary, device, stores)
        record |= {"status": "ok", "reason": None, "ranks": ranks, "parameters": parameters}
    except Exception as error:
        # For example an operation that torch does not support on tensors without memory.
        _, reason = classify(error)
        status = "unsupported" if isinstance(error, Unsupported) else "failed"
        record |= {"status": status, "reason": reason, "ranks": [], "parameters": None}
    return Prediction.model_validate(record | {"seconds": time.perf_counter() - began})


def takes_memory(spec: RunSpec) -> str:
    """The settings of ``spec`` that determine its memory; equal for specs that differ only in
    others."""
    others: Any = dict.fromkeys(("variant", "measurement"), True)
    others["training"] = {"log_every", "validate_every", "checkpoint_every", "schedule", "seed"}
    # Tensors take the same memory with any allocator, and on any cores.
    others["machine"] = {"allocator", "affinity"}
    return json.dumps(spec.model_dump(mode="json", exclude=others), sort_keys=True)


def device_of(spec: RunSpec) -> torch.device:
    cuda = spec.machine.device == "cuda"
    if spec.machine.device == "auto":
        cuda = torch.cuda.is_available()
    return torch.device("cuda", 0) if cuda else torch.device("cpu")


def capacity(spec: RunSpec, device: torch.device) -> int | None:
    """Bytes available to each process; None if this host has no such device."""
    hardware = read_hardware()
    if device.type == "cpu":
        return hardware.memory_bytes // spec.processes_per_machine
    return gpu_bytes(spec) or min((gpu.memory_bytes for gpu in hardware.gpus), default=None)


def notes(spec: RunSpec, device: torch.device) -> list[str]:
    """Notes on parts that the prediction imitates instead of running the run's own code."""
    found = []
    if isinstance(spec.parallel, Ddp):
        found.append("DDP's reducer cannot work without memory: its buckets are counted instead.")
    if isinstance(spec.parallel, DataParallel):
        found.append("Predicted as the same scheme with a process per device.")
    if device.type == "cuda" and not torch.cuda.is_available():
        found.append("There is no GPU here: the memory of CUDA's kernels is imitated on the CPU.")
    return found


def measured_context(device: str) -> dict[str, int | None]:
    """Bytes on a ``device`` of a process of a ``single`` and of a ``distributed`` run: the resident
    set on a CPU, NVML's number on a GPU, or null if NVML does not report it. Empty if the probe
    fails, which does not prevent a prediction."""
    command = [sys.executable, "-m", "transformer_core.measure.predicted_memory", device]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, int | None] = json.loads(done.stdout)
        return found
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("the memory of a process on %s is unknown: %s", device, error)
        return {}


def held_bytes(device: torch.device, before: dict[str, int]) -> int | None:
    """The memory this process holds, without torch's cache on a GPU; ``before`` is the memory in use
    on the GPUs before this process used any."""
    if device.type != "cuda":
        return int(psutil.Process().memory_info().rss)
    torch.cuda.synchronize(device)
    identity = nvml.cuda_uuid(device.index or 0) or ""
    processes = nvml.process_memory(identity)
    used = processes.get(os.getpid())
    # In a container NVML reports other process ids, or none. Then the number for the whole device
    # helps, unless another job uses the device, too, and may grow meanwhile.
    after = nvml.memory_by_uuid().get(identity)
    if used is None and identity in before and after is not None and len(processes) < 2:
        used = after - before[identity]
    return None if used is None else used - torch.cuda.memory_reserved(device)


def train_a_step(kind: str, device: torch.device) -> None:
    """One step of a small model under a strategy."""
    spec = RunSpec.model_validate(
        {
            "variant": "context",
            "model": {"kind": "transformer", "d_model": 16, "d_ff": 32, "heads": 2},
            "parallel": {"kind": kind},
            "machine": {"device": device.type, "devices_per_node": 1},
        }
    )
    process = Process(0, 1, 0, 1, device)
    model = build_model(spec.model, 300).to(device)
    strategy = build_strategy(spec.parallel, process, spec.machine, spec.training.accumulation)
    trainer = equip(spec, process, strategy, model)
    shape = BatchShape(rows=2, source_tokens=4, target_tokens=4)
    optimizer_step(trainer, blank_batch([shape], device), 1e-4)


def measure_context(device: torch.device) -> dict[str, int | None]:
    """:func:`measured_context`, for a process that has done nothing else."""
    before = nvml.memory_by_uuid()
    found = {}
    train_a_step("single", device)
    found["single"] = held_bytes(device, before)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    train_a_step("ddp", device)
    found["distributed"] = held_bytes(device, before)
    dist.destroy_process_group()
    return found


def tell(prediction: Prediction) -> str:
    if prediction.status != "ok" or prediction.peak_bytes is None:
        return f"{prediction.variant}: {prediction.status}, {prediction.reason}"
    text = f"{prediction.variant}: tensors {plain_size(prediction.peak_bytes)}"
    if prediction.process_bytes is not None:
        text += f", with the process {plain_size(prediction.process_bytes)}"
    if prediction.capacity_bytes is not None:
        text += f" of {plain_size(prediction.capacity_bytes)}"
    return text + {True: "", False: ": does not fit", None: ""}[prediction.fits]


class PredictMemory(Job):
    """Predicts the memory that run specs need on each device, without running them."""

    kind = "predict_memory"

    specs: list[Path]
    """Run specs as JSON."""
    data: Path | None = None
    """results/data/<corpus> with shards, for the run's real batches; null for the largest that the
    settings allow."""
    output: Path | None = None
    """JSON file to write."""
    context: bool = True
    """Whether to measure the memory of a process besides its tensors."""

    def run(self, log_file: Path | None) -> None:
        specs = [read_record(path, RunSpec) for path in self.specs]
        stores, vocabulary = None, None
        if self.data is not None:
            train, validation = shard_manifests(self.data)
            stores = open_shards(train), open_shards(validation)
            vocabulary = read_record(train, ShardManifest).vocabulary
        contexts: Contexts = {}
        if self.context:
            kinds = {device_of(spec).type for spec in specs}
            here = kinds if torch.cuda.is_available() else kinds - {"cuda"}
            contexts = {kind: measured_context(kind) for kind in sorted(here)}
        predictions: list[Prediction] = []
        known: dict[str, Prediction] = {}
        for spec in specs:
            key = takes_memory(spec)
            if key not in known:
                size = vocabulary or spec.tokenizer.vocabulary
                known[key] = predict(spec, size, stores, contexts)
            predictions.append(known[key].model_copy(update={"variant": spec.variant}))
            log.info("%s", tell(predictions[-1]))
            if warning := doubt(predictions[-1], predictions[-1].capacity_bytes):
                log.warning("%s", warning)
        if self.output is not None:
            result = PredictedMemory(predictions=predictions)
            write_result(self.output, result.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    print(json.dumps(measure_context(torch.device(sys.argv[1]))))
