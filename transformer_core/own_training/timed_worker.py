"""One process of a side that takes turns with the user's training.

Started by :mod:`transformer_core.measure.sessions`, not by hand.
"""

import time

import torch

from transformer_core.machine.core_affinity import keep_to
from transformer_core.machine.peak_memory import reset_peak
from transformer_core.measure.sessions import TurnsOrder
from transformer_core.measure.turns_worker import of_session
from transformer_core.observe.turns import TurnsOver, TurnTaker
from transformer_core.own_training.own_step import build_trainer, first_tensor
from transformer_core.run.coordinator import Hello, Turns, announced_session
from transformer_core.run.worker import Program


def work(order: TurnsOrder, program: Program) -> None:
    """Take a turns, and train whenever it is this side's turn."""
    process = program.process
    spec = of_session(order.spec, announced_session(order.coordinator))
    trainer = build_trainer(spec, process)
    strategy = trainer.strategy
    for device in strategy.devices:
        reset_peak(device)
    topology = strategy.topology()
    turns = Turns(order.coordinator, Hello(order.side, process.rank, topology))

    def prepare() -> None:
        if process.world_size == 1 and topology.device == "cpu":
            keep_to(torch.get_num_threads())

    taker = TurnTaker(turns, order.spec, strategy, None, prepare)
    try:
        taker.start(0)
        step = 0
        while True:
            step += 1
            asked = time.perf_counter()
            batch = trainer.batch()
            waited = time.perf_counter() - asked
            trainer.step(batch)
            shape = first_tensor(batch)
            items = shape.numel() * process.world_size
            taker.step_done(step, len(shape), items, items, waited)
    except TurnsOver:
        strategy.synchronise()
        strategy.close()
