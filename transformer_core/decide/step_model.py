"""Models a step on many devices, from measured compute times and a model of the link.

A device computes one thing at a time, and the link carries one message at a time; a message starts
as soon as its content is ready and the link is free. Communication that a device must wait for is
exposed. The time of a message follows the alpha-beta model (:class:`LinkModel`):
Hockney, The Communication Challenge for MPP, Parallel Computing 20, 1994; Thakur et al., 2005.

Every device does the work that was measured on one, so more devices train on larger global batches
(weak scaling).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from schemas.config.parallel import LinkModel
from schemas.results import (
    ComputeTimes,
    ExplainedShare,
    OriginalMachine,
    ProjectedStrategy,
    ReadyGradient,
)
from transformer_core.parallel.link_times import (
    all_reduce_seconds,
    broadcast_seconds,
    gather_seconds,
    scatter_seconds,
)

Backend = Literal["gloo", "nccl"]

MIB = 2**20
ELEMENT_BYTES = 4  # gradients, weights and logits are sent in 32 bits


@dataclass(frozen=True)
class Compute:
    """The parts of a step on one device, in seconds; micro-batch times are per micro-batch."""

    micro_batches: int
    forward: float
    backward: float
    update: float
    other: float
    gradients: Sequence[ReadyGradient]
    logits_bytes: float
    batch_bytes: float

    @classmethod
    def of(cls, times: ComputeTimes) -> "Compute":
        """From an ok measurement; ValueError for any other."""
        parts = (times.forward_seconds, times.backward_seconds, times.update_seconds)
        forward, backward, update = parts
        if forward is None or backward is None or update is None:
            raise ValueError(f"the compute times of {times.variant} are {times.status}")
        tokens = (times.source_tokens or 0.0) + 2 * (times.target_tokens or 0.0)
        return cls(
            micro_batches=times.micro_batches,
            forward=forward,
            backward=backward,
            update=update,
            other=times.other_seconds or 0.0,
            gradients=times.gradients,
            logits_bytes=ELEMENT_BYTES * (times.target_tokens or 0.0) * (times.vocabulary or 0),
            batch_bytes=8 * tokens,
        )

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def alone(self) -> float:
        """Seconds of a step on a single device."""
        return self.micro_batches * (self.forward + self.backward) + self.update + self.other


class Bucket(NamedTuple):
    """Gradients that are reduced together."""

    bytes: int
    ready: float  # seconds from the start of backward until the last of them is ready


def buckets(gradients: Sequence[ReadyGradient], bucket_mb: float) -> list[Bucket]:
    """The buckets that DistributedDataParallel fills, in the order of the gradients.

    Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020,
    section 3.2.3.
    """
    found: list[Bucket] = []
    size = 0
    for gradient in gradients:
        size += gradient.bytes
        if size >= bucket_mb * MIB:
            found.append(Bucket(size, gradient.seconds))
            size = 0
    if size:
        found.append(Bucket(size, gradients[-1].seconds))
    return found


def step_seconds(
    strategy: ProjectedStrategy,
    compute: Compute,
    link: LinkModel,
    devices: int,
    bucket_mb: float = 25.0,
    payload: float = 1.0,
    overlap: bool = True,
    reshard: bool = True,
    local_loss: bool = False,
    backend: Backend = "nccl",
) -> float:
    """Time of an optimizer step on ``devices`` devices.

    Strategies with buckets use ``bucket_mb``, ``payload``, the fraction of the gradients' bytes
    that is sent (0.5 for a 16-bit format), and ``overlap`` with backward. FSDP uses ``reshard``,
    whether it gathers its layers again for backward, and ``backend``: gloo's reduce-scatter is
    internally an all-reduce. With ``local_loss`` central gathers no logits.
    """
    if devices == 1:
        return compute.alone
    rest = compute.update + compute.other
    match strategy:
        case "fsdp":
            sharded = _fully_sharded(compute, link, devices, backend, reshard)
            return compute.micro_batches * sharded + rest
        case "central":
            # Weights are broadcast once, after the update.
            weights = broadcast_seconds(link, compute.gradient_bytes, devices)
            central = _central(compute, link, devices, local_loss)
            return compute.micro_batches * central + rest + weights
    found = buckets(compute.gradients, bucket_mb)
    overlapped = overlap and strategy != "ddp_no_overlap"
    reducing = compute.forward + _reduced(found, compute, link, devices, overlapped, payload)
    every = compute.micro_batches if strategy == "accumulation_sync" else 1
    plain = compute.forward + compute.backward
    return every * reducing + (compute.micro_batches - every) * plain + rest


def _reduced(
    found: Sequence[Bucket],
    compute: Compute,
    link: LinkModel,
    devices: int,
    overlapped: bool,
    payload: float,
) -> float:
    """Time from the start of backward until all buckets are reduced."""
    free = 0.0 if overlapped else compute.backward
    for bucket in found:
        free = max(free, bucket.ready)
        free += all_reduce_seconds(link, payload * bucket.bytes, devices)
    return max(compute.backward, free)


def _fully_sharded(
    compute: Compute, link: LinkModel, devices: int, backend: Backend, reshard: bool
) -> float:
    """Forward and backward of FSDP, whose layers are gathered for forward and, with ``reshard``,
    again for backward.

    The next layer is gathered while one is computed (Zhao et al., PyTorch FSDP: Experiences on
    Scaling Fully Sharded Data Parallel, VLDB 2023, section 3.3).
    """
    reduce_scatter = all_reduce_seconds if backend == "gloo" else gather_seconds
    groups = _groups(compute)
    free = now = 0.0
    # Forward runs layers in reverse order; each has the same share as in backward.
    for duration, order in ((compute.forward, groups[::-1]), (compute.backward, groups)):
        backward = order is groups
        gathers = reshard or not backward
        gathered = now
        if gathers:
            gathered = free = max(free, now) + gather_seconds(link, order[0][0], devices)
        for position, (size, share) in enumerate(order):
            now = max(now, gathered)
            if gathers and position + 1 < len(order):
                free = max(free, now) + gather_seconds(link, order[position + 1][0], devices)
                gathered = free
            now += share * duration
            if backward:
                free = max(free, now) + reduce_scatter(link, size, devices)
    return max(now, free)


def _groups(compute: Compute) -> list[tuple[int, float]]:
    """The layers, each gathered as one, in the order in which backward completes them: bytes, and
    fraction of backward. What follows the last gradient is the last layer's."""
    layers: dict[int | None, Bucket] = {}
    for gradient in compute.gradients:
        before = layers.get(gradient.layer, Bucket(0, 0.0))
        layers[gradient.layer] = Bucket(before.bytes + gradient.bytes, gradient.seconds)
    ordered = sorted(layers.values(), key=lambda layer: layer.ready)
    ends = [*(layer.ready for layer in ordered[:-1]), compute.backward]
    starts = [0.0, *ends]
    return [
        (layer.bytes, (end - start) / compute.backward)
        for layer, start, end in zip(ordered, starts, ends, strict=False)
    ]


def _central(compute: Compute, link: LinkModel, devices: int, local_loss: bool) -> float:
    """Forward and backward if the first device distributes batches and gathers logits."""
    logits_bytes = 0.0 if local_loss else devices * compute.logits_bytes
    logits = scatter_seconds(link, logits_bytes, devices)
    batch = scatter_seconds(link, devices * compute.batch_bytes, devices)
    gradients = broadcast_seconds(link, compute.gradient_bytes, devices)
    # Logits are gathered, and their gradients sent back.
    return compute.forward + compute.backward + batch + 2 * logits + gradients


DEVICES = 4
REPORTED_SHARE = 0.79
"""Fraction of CUDA stream time in all-reduce and broadcast, as the original study read it from
Nsight Systems."""

LAYERS, D_MODEL, D_FF, VOCABULARY = 6, 512, 2048, 30_000
PAIRS_PER_DEVICE = 512  # maximum: with more, the first GPU ran out of memory
TOKENS_PER_PAIR = (20, 100)  # source and target together: not given, from short to long sentences

PEAK_FLOPS_PER_SECOND = 35.58e12
"""GeForce RTX 3090, 32-bit without tensor cores (NVIDIA, Ampere GA102 GPU Architecture, 2020)."""

UTILISATIONS = (0.2, 0.6)
"""Fraction of the peak that matrix products of this size may reach: not given."""

LINK_BYTES_PER_SECOND = (3e9, 25e9)
"""From PCI Express 3.0 x4, or x16 through host memory, to effective PCI Express 4.0 x16: not
given. The link itself carries 31.5 GB/s (PCI-SIG, PCI Express Base Specification 4.0)."""


def parameters() -> int:
    """Weights of the Annotated Transformer's matrices, with three separate tables."""
    attention, feed_forward = 4 * D_MODEL**2, 2 * D_MODEL * D_FF
    layers = LAYERS * (attention + feed_forward) + LAYERS * (2 * attention + feed_forward)
    return layers + 3 * VOCABULARY * D_MODEL


def worked_example() -> OriginalMachine:
    """One all-reduce per step as a fraction of its sum with forward and backward, at the
    extremes of the unknowns."""
    weights = parameters()
    # Table look-ups are not products: of the three tables, only the projection counts.
    multiplied = weights - 2 * VOCABULARY * D_MODEL
    cases = []
    for rate, utilisation, tokens in product(LINK_BYTES_PER_SECOND, UTILISATIONS, TOKENS_PER_PAIR):
        communication = all_reduce_seconds(LinkModel(bandwidth=8 * rate), 4 * weights, DEVICES)
        # Half of the tokens are the encoder's, half the decoder's, each with its weights.
        flops = 6 * multiplied * PAIRS_PER_DEVICE * tokens / 2
        compute = flops / (utilisation * PEAK_FLOPS_PER_SECOND)
        cases.append(
            ExplainedShare(
                link_bytes_per_second=rate,
                utilisation=utilisation,
                tokens_per_pair=tokens,
                all_reduce_seconds=communication,
                compute_seconds=compute,
                share=communication / (communication + compute),
            )
        )
    return OriginalMachine(
        parameters=weights,
        devices=DEVICES,
        pairs=PAIRS_PER_DEVICE,
        peak_flops_per_second=PEAK_FLOPS_PER_SECOND,
        reported_share=REPORTED_SHARE,
        cases=cases,
    )
