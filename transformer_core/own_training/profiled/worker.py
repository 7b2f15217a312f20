"""One process that records a few of the user's steps.

Started by :mod:`transformer_core.own_training.profiled.job`, not by hand.
"""

import json

import torch

from transformer_core.common.files import write_text
from transformer_core.observe.profile_order import rank_file
from transformer_core.observe.profiler import TorchRecording
from transformer_core.observe.ranges import allocated_mark, mark_layers, of_phases
from transformer_core.own_training.order import OwnProfileOrder
from transformer_core.own_training.own_step import OwnTrainer, build_trainer
from transformer_core.own_training.profiled.step_marks import mark_own_phases
from transformer_core.run.worker import Program
from transformer_core.trace.events.phases import STEP


def work(order: OwnProfileOrder, program: Program) -> None:
    """Train a few steps, the last of them recorded; write the trace, and its name in rank-<r>.json,
    which comes last."""
    process = program.process
    trainer = build_trainer(order.spec, process)
    recording = TorchRecording(order.output, process.rank, process.device)
    mark = of_phases(recording.range_named)
    mark_layers(trainer.parts.module, recording.range_named, allocated_mark(process.device))
    next_batch = mark_own_phases(trainer, mark)
    for _ in range(order.warmup_steps):
        trainer.step(next_batch())
    recording.prepare()
    # Ranks start together: none waits in its first step for another's profiler.
    trainer.strategy.synchronise()
    recording.start()
    for _ in range(order.steps):
        with mark(STEP):
            trainer.step(next_batch())
    _wait_for_this_rank(trainer)
    recording.stop()
    (file,) = recording.save()
    write_text(order.output / rank_file(process.rank), json.dumps(file))
    trainer.strategy.synchronise()
    trainer.strategy.close()


def _wait_for_this_rank(trainer: OwnTrainer) -> None:
    """A barrier would be one more collective in the trace."""
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
