"""One process of a profiled run, started by :mod:`transformer_core.observe.profile_job`."""

import json
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from schemas.config.run_spec import RunSpec
from schemas.results import DdpTimes, RankCapture
from transformer_core.common.files import write_text
from transformer_core.common.progress import RunProgress
from transformer_core.observe.profile_job import CaptureOrder, rank_file
from transformer_core.observe.ranges import (
    NsysRecording,
    Recording,
    TorchRecording,
    allocated_mark,
    mark_layers,
    mark_phases,
)
from transformer_core.run.statuses import CHECKPOINTS
from transformer_core.run.worker import Program
from transformer_core.trace.events.phases import STEP, label
from transformer_core.training.assemble import Setup
from transformer_core.training.loop import train
from transformer_core.training.observer import Observer, Observers, Progress


class Enough(Exception):
    """The profiled steps are done: the training can stop."""


class Capturing(Observer):
    def __init__(self, setup: Setup, recording: Recording, warmup: int, steps: int) -> None:
        self.setup = setup
        self.recording = recording
        self.first, self.last = warmup + 1, warmup + steps
        self.timed = range(self.first, self.last + 1)  # steps that DDP's own timers describe
        if has_slow_timers(setup):
            self.timed = range(self.last + 1, self.last + steps + 1)
        self.seconds: list[float] = []
        self.ddp: list[DdpTimes] = []
        self.step: Any = None
        self.began = 0.0

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        if self.step is not None:
            self.step.__exit__(None, None, None)
            self.step = None
            self.seconds.append(time.perf_counter() - self.began)
        if step == self.first - 1:
            self.recording.prepare()
            # Ranks start together, so that none waits in its first step for another's profiler.
            self.setup.strategy.synchronise()
            self.recording.start()
        if step == self.last:
            # Only this rank's devices: a barrier would be one more collective in the trace.
            for device in self.setup.strategy.devices:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            self.recording.stop()
        if self.first - 1 <= step < self.last:
            self.step = self.recording.range_named(label(STEP))
            self.step.__enter__()
            self.began = time.perf_counter()
        if step == self.timed[0] - 1:
            switch_on_timers(self.setup)
        delay = ddp_delay(self.setup.spec)
        described = step - delay
        if described in self.timed and (times := ddp_times(self.setup, described)):
            self.ddp.append(times)
        if step >= self.timed[-1] + delay:
            raise Enough


def has_slow_timers(setup: Setup) -> bool:
    """Whether DistributedDataParallel's timers disturb the step: on CUDA the host waits for their
    events in every step, and the device for the host."""
    return isinstance(setup.module, DistributedDataParallel) and setup.device.type == "cuda"


def switch_on_timers(setup: Setup) -> None:
    if isinstance(setup.module, DistributedDataParallel):
        setup.module._set_ddp_runtime_logging_sample_rate(1)


def ddp_delay(spec: RunSpec) -> int:
    """Steps after which the timers of DistributedDataParallel describe a step; 0 without them.

    They are read when the next reduction begins: within the same step if it has several.
    """
    accumulation = spec.training.accumulation
    several = accumulation.synchronise == "every" and accumulation.micro_batches > 1
    return 1 if spec.parallel.buckets and not several else 0


def ddp_times(setup: Setup, step: int) -> DdpTimes | None:
    """The times of ``step`` from DistributedDataParallel's timers; None if they have none."""
    if not isinstance(setup.module, DistributedDataParallel):
        return None
    # torch has no public way to read them.
    data = setup.module._get_ddp_logging_data()
    seconds = int(data.get("backward_comm_time", 0)) / 1e9
    return DdpTimes(step=step, communication_seconds=seconds) if seconds > 0 else None


def uninterrupted(spec: RunSpec, steps: int) -> RunSpec:
    """``spec`` without validations and checkpoints, and longer than ``steps`` steps."""
    steps = max(spec.training.steps, steps + 2)
    return spec.with_training(steps=steps, validate_every=0, checkpoint_every=0)


def work(order: CaptureOrder, program: Program) -> None:
    process = program.process
    warmup, steps = order.warmup_steps, order.profiling.steps
    setup = program.assemble(uninterrupted(order.spec, warmup + 2 * steps))
    recording: Recording
    if order.profiler == "nsys":
        recording = NsysRecording(process.device)
    else:
        recording = TorchRecording(order.output, process.rank, process.device)
    mark_layers(setup.model, recording.range_named, allocated_mark(process.device))
    mark_phases(setup, lambda phase: recording.range_named(label(phase)))
    progress = RunProgress(order.title, warmup + 2 * steps + 1, show=process.is_main)
    observer = Capturing(setup, recording, warmup, steps)
    try:
        train(setup, Observers(Progress(progress), observer), order.output / CHECKPOINTS)
    except Enough:
        progress.close()
    rank = RankCapture(
        rank=process.rank, files=recording.save(), step_seconds=observer.seconds, ddp=observer.ddp
    )
    topology = setup.strategy.topology()
    done = {"rank": rank.model_dump(), "topology": topology.model_dump()}
    write_text(order.output / rank_file(process.rank), json.dumps(done))
    setup.strategy.synchronise()
    setup.strategy.close()
