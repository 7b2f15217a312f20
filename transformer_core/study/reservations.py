"""Cluster resources of a job, from its run specs: hosts, GPUs, memory, time.

Memory and time are generous rather than exact. A job that runs out of either is retried with more
(``attempt``) and resumes from its last checkpoint.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.config.data import FixedSize
from schemas.config.model import AnyLanguageModel, DecoderOnly, HuggingFaceCausal
from schemas.config.parallel import Ddp, Machine
from schemas.config.run_spec import RunSpec
from schemas.results.memory import Prediction

_PROCESS_BYTES = {"cpu": 1.0e9, "cuda": 8.0e9}
"""Main memory of a process that has loaded torch (and the CUDA libraries), with room for input; on
CUDA also for a certificate that recomputes a step on the host, which takes 6 to 8 GB of it."""

_BYTES_PER_PARAMETER = 28
"""32-bit weights, gradients and two moments of AdamW, buckets of DistributedDataParallel, and
copies while a checkpoint is written. On CUDA the main memory holds copies in 64 bits for checks of
steps, which the processes divide among themselves, and those for a checkpoint."""

_BYTES_PER_TOKEN_AND_WIDTH = 4 * 40
"""Activations of a layer: some forty 32-bit numbers per token and element of its width."""

_FLOPS_PER_SECOND = {"cpu": 1e10, "cuda": 2e12}  # a slow device at work. Most are faster.
_START_MINUTES = 10


@dataclass(frozen=True)
class Reservation:
    hosts: int
    gpus_per_host: int
    memory_mb: int  # main memory of each host, in 10^6 bytes
    minutes: int


def reservation(
    specs: Sequence[RunSpec],
    vocabulary: int,
    predictions: Sequence[Prediction] = (),
    attempt: int = 1,
    seconds: float = 0.0,
) -> Reservation:
    """The resources of a job that runs the processes of all ``specs`` at the same time, and
    takes so many ``seconds`` besides their starts and one training.

    ``vocabulary`` is that of the tokenizer. A prediction of a spec's memory on a CPU replaces the
    estimate.
    """
    predicted = {prediction.variant: prediction for prediction in predictions}
    memory = sum(_memory_bytes(spec, vocabulary, predicted.get(spec.variant)) for spec in specs)
    minutes = len(specs) * _START_MINUTES + max(_minutes(spec, vocabulary) for spec in specs)
    return Reservation(
        hosts=max(hosts(spec) for spec in specs),
        gpus_per_host=max(gpus_per_host(spec) for spec in specs),
        memory_mb=attempt * math.ceil(memory / 1e6),
        minutes=attempt * math.ceil(minutes + seconds / 60),
    )


def largest(specs: Iterable[RunSpec]) -> RunSpec:
    """The spec with most hosts; of several, that with most GPUs, then with most processes."""
    return max(specs, key=lambda spec: (hosts(spec), gpus_per_host(spec), spec.world_size))


def on_one_device(spec: RunSpec) -> RunSpec:
    """The spec in a single process, for jobs that only use its trained model."""
    return RunSpec.model_validate(spec.model_dump() | {"parallel": {"kind": "single"}})


def on_one_host(spec: RunSpec) -> RunSpec:
    """The spec as DistributedDataParallel, with only the processes on one machine."""
    machine = spec.machine
    devices = {"devices_per_node": devices_on_a_host(machine)}
    alone = machine.model_copy(update={"nodes": 1, "link": None} | devices)
    data = spec.model_dump() | {"machine": alone.model_dump(), "parallel": {"kind": "ddp"}}
    return RunSpec.model_validate(data)


_OF_A_STEP: dict[str, Any] = {
    "model": True,
    "batching": True,
    "training": {"precision", "optimizer", "loss", "clip_norm", "clipping"},
    "machine": {
        *("device", "devices_per_node", "threads"),
        *("affinity", "allocator", "cuda_allocator", "garbage_collection", "kept_kernels"),
    },
}
"""Settings on which the time of a device's work depends."""


def work_of_a_device(spec: RunSpec) -> str:
    """The settings behind a device's work in a step; equal for specs that differ only in
    communication."""
    work = on_one_host(spec).model_dump(mode="json", include=_OF_A_STEP)
    micro_batches = spec.training.accumulation.micro_batches
    return json.dumps([work, micro_batches, spec.world_size], sort_keys=True)


def on_all_devices(machine: Machine, variant: str) -> RunSpec:
    """A run spec with the processes of the distributed variants on ``machine``."""
    return RunSpec(variant=variant, parallel=Ddp(kind="ddp"), machine=machine)


def hosts(spec: RunSpec) -> int:
    """Hosts of the cluster that a run needs; both hosts of a limited link are simulated on one."""
    return 1 if spec.machine.link else spec.machine.nodes


def gpus_per_host(spec: RunSpec) -> int:
    """GPUs to reserve on each host. The device auto reserves none: it takes what it finds."""
    if spec.machine.device != "cuda":
        return 0
    return devices_on_a_host(spec.machine)


def devices_on_a_host(machine: Machine) -> int:
    """Devices of a run on each host; both hosts of a limited link are simulated on one."""
    return machine.devices_per_node * (machine.nodes if machine.link else 1)


def parameters(spec: RunSpec, vocabulary: int) -> int:
    """Number of weights in the matrices of a model of these sizes."""
    model = spec.model
    if isinstance(model, DecoderOnly | HuggingFaceCausal):
        embeddings = (1 if model.tied_embeddings else 2) * vocabulary * model.d_model
        return model.layers * layer_weights(model) + embeddings
    attention, feed_forward = 4 * model.d_model**2, 2 * model.d_model * model.d_ff
    layers = model.encoder_layers * (attention + feed_forward)
    layers += model.decoder_layers * (2 * attention + feed_forward)
    return layers + (1 if model.tied_embeddings else 3) * vocabulary * model.d_model


def layer_weights(model: AnyLanguageModel) -> int:
    """Number of weights in the matrices of a layer; for other libraries, of the most common kind."""
    heads, gated = model.heads, True
    kv_heads = heads
    if isinstance(model, DecoderOnly):
        kv_heads = model.kv_heads or heads
        gated = model.feed_forward.kind == "swiglu"
    attention = 2 * model.d_model**2 * (heads + kv_heads) // heads
    return attention + (3 if gated else 2) * model.d_model * model.d_ff


def layers(spec: RunSpec) -> int:
    model = spec.model
    if isinstance(model, DecoderOnly | HuggingFaceCausal):
        return model.layers
    return model.encoder_layers + model.decoder_layers


def step_flops(spec: RunSpec, vocabulary: int, tokens: float) -> float:
    """Operations of an optimizer step with a batch of ``tokens``: 2 per weight and token forward,
    twice as many backward (arXiv 2001.08361)."""
    return 6 * parameters(spec, vocabulary) * tokens


def _memory_bytes(spec: RunSpec, vocabulary: int, prediction: Prediction | None) -> float:
    processes = spec.processes_per_machine
    weights = _BYTES_PER_PARAMETER * parameters(spec, vocabulary)
    if spec.machine.device == "cuda":
        return processes * _PROCESS_BYTES["cuda"] + weights
    if prediction is not None and prediction.device == "cpu" and prediction.process_bytes:
        return processes * 1.25 * prediction.process_bytes
    tokens = most_tokens(spec) / spec.parts
    activations = tokens * layers(spec) * spec.model.d_model * _BYTES_PER_TOKEN_AND_WIDTH
    logits = 3 * 4 * tokens * vocabulary
    return processes * (_PROCESS_BYTES["cpu"] + weights + activations + logits)


def _minutes(spec: RunSpec, vocabulary: int) -> float:
    """Of a training."""
    device = "cuda" if spec.machine.device == "cuda" else "cpu"
    flops = step_flops(spec, vocabulary, most_tokens(spec)) * spec.training.steps
    devices = spec.parts / spec.training.accumulation.micro_batches
    return flops / devices / _FLOPS_PER_SECOND[device] / 60


def most_tokens(spec: RunSpec) -> float:
    """Most tokens of a global batch, padding included."""
    batching = spec.batching
    if isinstance(batching, FixedSize):
        return batching.scaled_pairs * spec.longest
    return batching.scaled_tokens
