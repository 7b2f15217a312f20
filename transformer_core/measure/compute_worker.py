"""One of the processes that time the step of a device.

Started by :mod:`transformer_core.measure.compute`, not by hand.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from schemas.config.measurement import Projecting
from schemas.config.parallel import Single
from schemas.results import ComputeTimes, ReadyGradient
from transformer_core.common.files import write_text
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.machine.provenance import collect
from transformer_core.measure.compute import RESULT, ComputeOrder
from transformer_core.observe.followed_step import watched_step
from transformer_core.parallel.fsdp import repeated_layers
from transformer_core.parallel.strategy import gather_texts
from transformer_core.run.worker import Program
from transformer_core.training.assemble import Setup

Moment = float | torch.cuda.Event
"""A moment on a device's own clock: seconds, or on CUDA an event."""


def now(device: torch.device) -> Moment:
    """The current moment; on CUDA, when the device reaches it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(first: Any, second: Any) -> float:
    """Seconds between two moments, which the device has reached."""
    if isinstance(first, torch.cuda.Event):
        return first.elapsed_time(second) / 1000
    return float(second - first)


@dataclass
class Times:
    """Seconds of the parts of some steps."""

    forward: list[float] = field(default_factory=list)  # of every micro-batch
    backward: list[float] = field(default_factory=list)  # likewise
    ready: list[list[float]] = field(default_factory=list)
    """From the start of backward to each parameter's gradient; NaN without a gradient."""
    update: list[float] = field(default_factory=list)  # of every step
    whole: list[float] = field(default_factory=list)  # likewise


def slowest(ranks: Sequence[Times]) -> Times:
    """The times of the slowest of all ranks that compute in parallel, moment by moment.

    An all-reduce begins when the last rank arrives, so each moment counts when the last rank reaches
    it.
    """
    forward, backward, ready = (
        np.array([getattr(times, part) for times in ranks])
        for part in ("forward", "backward", "ready")
    )
    backward_begins = forward.max(0)
    return Times(
        forward=backward_begins.tolist(),
        backward=((forward + backward).max(0) - backward_begins).tolist(),
        ready=((forward[..., None] + ready).max(0) - backward_begins[..., None]).tolist(),
        update=np.max([times.update for times in ranks], axis=0).tolist(),
        whole=np.max([times.whole for times in ranks], axis=0).tolist(),
    )


class StepTimes:
    """Times the parts of steps.

    Gradients are ``followed`` by a hook for each parameter, until :meth:`unfollow`.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.parameters = [p for p in setup.model.parameters() if p.requires_grad]
        self.times = Times()
        self._found: dict[int, Moment] = {}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note(number))
            for number, parameter in enumerate(self.parameters)
        ]

    def unfollow(self) -> Times:
        """Removes all hooks; returns the times of the steps so far."""
        followed, self.times = self.times, Times()
        for hook in self._hooks:
            hook.remove()
        return followed

    def step(self, batch: GlobalBatch, record: bool) -> None:
        """Trains one step; keeps its times if ``record`` is true."""
        began = now(self.setup.device)
        ends: dict[str, list[Moment]] = {"forward": [], "backward": [], "update": []}
        found: list[dict[int, Moment]] = []

        def watch(moment: str) -> None:
            ends[moment].append(now(self.setup.device))
            if moment == "forward":
                found.append({})
                self._found = found[-1]

        watched_step(self.setup, batch, watch)
        (updated,) = ends["update"]
        self.setup.strategy.synchronise()
        if not record:
            return
        starts = [began, *ends["backward"]]
        for start, middle, end, ready in zip(
            starts, ends["forward"], ends["backward"], found, strict=False
        ):
            self.times.forward.append(between(start, middle))
            self.times.backward.append(between(middle, end))
            self.times.ready.append(
                [
                    between(middle, ready[number]) if number in ready else math.nan
                    for number in range(len(self.parameters))
                ]
            )
        self.times.update.append(between(starts[-1], updated))
        self.times.whole.append(between(began, updated))

    def _note(self, number: int) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            self._found[number] = now(self.setup.device)

        return note

    def gradients(self, ready: Iterable[Sequence[float]]) -> list[ReadyGradient]:
        """All parameters in the order of their gradients, by the ``ready`` seconds of each in every
        micro-batch."""
        layers = {
            id(parameter): number
            for number, layer in enumerate(repeated_layers(self.setup.model))
            for parameter in layer.parameters()
        }
        found = [
            ReadyGradient(
                bytes=parameter.numel() * parameter.element_size(),
                seconds=median(times),
                layer=layers.get(id(parameter)),
            )
            for parameter, times in zip(self.parameters, zip(*ready, strict=True), strict=True)
            if not any(map(math.isnan, times))
        ]
        return sorted(found, key=lambda gradient: gradient.seconds)


def undisturbed(followed: Times, plain: Times) -> Times:
    """The times of steps without hooks, ``plain``, with the gradients of steps with, ``followed``.

    On a GPU, hooks for some 200 parameters make backward wait for the host. So the time of a gradient
    is its share of backward with hooks, applied to the length of backward without them.
    """
    stretch = median(plain.backward) / median(followed.backward)
    ready = [[stretch * seconds for seconds in moments] for moments in followed.ready]
    return replace(plain, ready=ready)


def timed(
    setup: Setup, times: StepTimes, settings: Projecting
) -> tuple[Times, list[int], list[int]]:
    """The times of this rank's steps, and source and target tokens of their micro-batches."""
    setup.module.train()
    source, target = [], []
    # A second pass, without hooks, on GPUs, which hooks disturb.
    passes = 2 if setup.device.type == "cuda" else 1
    followed = None
    with closing(setup.strategy.batches(setup.feed, 0, 0)) as batches:
        for number in range(settings.warmup_steps + passes * settings.steps):
            if number == settings.warmup_steps + settings.steps:
                followed = times.unfollow()
            batch = next(batches)
            if dist.is_initialized():
                dist.barrier()
            times.step(batch, record=number >= settings.warmup_steps)
            source += [micro.source.numel() for micro in batch.micro_batches]
            target += [micro.target_output.numel() for micro in batch.micro_batches]
    own = times.times if followed is None else undisturbed(followed, times.times)
    return own, source, target


def work(order: ComputeOrder, program: Program) -> None:
    started = datetime.now(UTC)
    spec, settings = order.spec, order.settings
    process = program.process
    setup = program.assemble(
        spec.model_copy(update={"parallel": Single()}),
        # As one of the run's processes, so that it gets only its share of the batches.
        replace(process, world_size=order.shares),
    )
    times = StepTimes(setup)
    # The processes only wait for one another, so that all compute at the same time.
    together = process.world_size > 1
    if together:
        dist.init_process_group("gloo", timeout=timedelta(seconds=spec.machine.timeout))
    own, source, target = timed(setup, times, settings)
    ranks = [own]
    if together:
        texts = gather_texts(json.dumps(asdict(own)), torch.device("cpu"))
        ranks = [Times(**json.loads(text)) for text in texts]
        dist.destroy_process_group()
    if process.is_main:
        found = slowest(ranks)
        micro_batches = spec.training.accumulation.micro_batches
        forward, backward, update = map(median, (found.forward, found.backward, found.update))
        rest = median(found.whole) - micro_batches * (forward + backward) - update
        record = ComputeTimes(
            variant=spec.variant,
            status="ok",
            reason=None,
            micro_batches=micro_batches,
            forward_seconds=forward,
            backward_seconds=backward,
            update_seconds=update,
            other_seconds=max(0.0, rest),
            topology=process.describe(None, [process.place], None),
            gradients=times.gradients(found.ready),
            source_tokens=fmean(source),
            target_tokens=fmean(target),
            vocabulary=program.stores[0].manifest.vocabulary,
            provenance=collect(spec, order.command, started),
        )
        write_text(order.output / RESULT, record.model_dump_json(indent=1) + "\n")
