"""The memory that run specs need, without running them.

The tensors are those of two steps and a validation on tensors without memory; what a process takes
besides is measured once on this machine. Without the corpus, batches are the largest that the settings allow.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from schemas.config.parallel import DataParallel, Ddp
from schemas.config.run_spec import RunSpec
from schemas.errors import Unsupported
from schemas.results import PredictedMemory, Prediction, ShardManifest
from transformer_core.common.digests import write_result
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.common.records import read_record
from transformer_core.data.sharding.shard_store import PairStore, open_shards
from transformer_core.machine.hardware import read_hardware
from transformer_core.measure.memory_fit import doubt
from transformer_core.measure.memory_prediction import predict_ranks
from transformer_core.measure.process_context import measured_context
from transformer_core.run.order import shard_manifests
from transformer_core.run.statuses import classify

Contexts = dict[str, dict[str, int | None]]
"""Bytes that a process takes, by kind of device, then by kind of run."""


def predict(
    spec: RunSpec,
    vocabulary: int,
    stores: tuple[PairStore, PairStore] | None = None,
    contexts: Contexts | None = None,
) -> Prediction:
    """Predicts the memory that a run of ``spec`` needs on each device; a status gives the reason
    where it cannot."""
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
        # torch may know an operation, but not on tensors without memory: a prediction less.
        status, reason = classify(error)
        status = "unsupported" if isinstance(error, Unsupported) else "failed"
        record |= {"status": status, "reason": reason, "ranks": [], "parameters": None}
    return Prediction.model_validate(record | {"seconds": time.perf_counter() - began})


def takes_memory(spec: RunSpec) -> str:
    """The part of ``spec`` that its memory depends on; equal for specs that differ only
    elsewhere."""
    data = spec.model_dump(mode="json", exclude={"variant", "evaluation", "measurement"})
    for setting in ("log_every", "validate_every", "checkpoint_every", "schedule", "seed"):
        del data["training"][setting]
    return json.dumps(data, sort_keys=True)


def device_of(spec: RunSpec) -> torch.device:
    """The device of the first rank."""
    cuda = spec.machine.device == "cuda"
    if spec.machine.device == "auto":
        cuda = torch.cuda.is_available()
    return torch.device("cuda", 0) if cuda else torch.device("cpu")


def capacity(spec: RunSpec, device: torch.device) -> int | None:
    """Memory that each process may fill; null if this host has no such device."""
    hardware = read_hardware()
    if device.type == "cpu":
        return hardware.memory_bytes // spec.processes_per_node
    return min((gpu.memory_bytes for gpu in hardware.gpus), default=None)


def notes(spec: RunSpec, device: torch.device) -> list[str]:
    """Notes on what the prediction does not take from the run's own code."""
    found = []
    if isinstance(spec.parallel, Ddp):
        found.append("DDP's reducer cannot work without memory: its buckets are counted instead.")
    if isinstance(spec.parallel, DataParallel):
        found.append("Predicted as the same scheme with a process per device.")
    if device.type == "cuda" and not torch.cuda.is_available():
        found.append("There is no GPU here: the memory of CUDA's kernels is imitated on the CPU.")
    return found


def _context(device: torch.device) -> dict[str, int | None]:
    """The memory of a process; unknown where the probe fails, which does not prevent a
    prediction."""
    try:
        return measured_context(device)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("the memory of a process on %s is unknown: %s", device, error)
        return {}


def tell(prediction: Prediction) -> str:
    """The prediction in a line."""
    if prediction.status != "ok" or prediction.peak_bytes is None:
        return f"{prediction.variant}: {prediction.status}, {prediction.reason}"
    text = f"{prediction.variant}: tensors {_mib(prediction.peak_bytes)}"
    if prediction.process_bytes is not None:
        text += f", with the process {_mib(prediction.process_bytes)}"
    if prediction.capacity_bytes is not None:
        text += f" of {_mib(prediction.capacity_bytes)}"
    return text + {True: "", False: ": does not fit", None: ""}[prediction.fits]


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


class PredictMemory(Job):
    """To predict the memory that run specs need on each device, without running them."""

    kind = "predict_memory"

    specs: list[Path]
    """Run specs as JSON."""
    data: Path | None = None
    """results/data/<corpus> with shards, for the run's real batches."""
    output: Path | None = None
    """JSON file to write."""
    context: bool = True
    """Whether to measure what a process takes besides its tensors."""

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
            contexts = {kind: _context(torch.device(kind)) for kind in sorted(here)}
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
