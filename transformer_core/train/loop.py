"""The training loop. It knows no technique: strategy, precision and observer do."""

import math
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from schemas.errors import Diverged
from schemas.results import Validation
from transformer_core.data.feeding import GlobalBatch
from transformer_core.train import checkpoint
from transformer_core.train.assemble import Setup, Trainer
from transformer_core.train.evaluation import validation_loss
from transformer_core.train.history import History
from transformer_core.train.schedule import learning_rate


class Observer(Protocol):
    """What watches a training: a clock, a profiler, a progress bar."""

    def start(self, step: int) -> None:
        """Training starts, or goes on, with ``step`` optimizer steps done."""

    def updated(
        self, step: int, target_tokens: int, loss_sum: torch.Tensor, norm: torch.Tensor
    ) -> None:
        """The weights were updated. ``loss_sum`` of this rank and ``norm`` of the whole gradient
        are still on the device: to read them is to wait for it."""

    def step_done(
        self, step: int, pairs: int, tokens: int, padded_tokens: int, input_wait_seconds: float
    ) -> None:
        """An optimizer step is done (on the host; the device may still be at it)."""

    def logged(self, step: int, loss: float) -> None:
        """The loss of a step was read."""

    def validated(self, step: int, loss: float) -> None:
        """A validation loss was computed."""

    def pause(self) -> None:
        """What follows is not training (validation, a checkpoint)."""

    def resume(self) -> None:
        """Training goes on."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, as JSON."""

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state` gave."""


def train(setup: Setup, observer: Observer, checkpoints: Path) -> History:
    """Train to the last step, from the newest checkpoint in ``checkpoints`` if there is one.

    Raises Diverged as soon as a loss that is read is not finite.
    """
    training = setup.spec.training
    history = History()
    done = 0
    if path := checkpoint.latest(checkpoints, setup):
        done, state = checkpoint.load(path, setup)
        history = History.from_state(state["history"])
        history.resumed_at.append(done)
        observer.load(state["observer"])

    setup.module.train()
    batches = setup.strategy.batches(setup.feed, *history.position)
    observer.start(done)
    try:
        for step in range(done + 1, training.steps + 1):
            asked = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - asked

            rate = learning_rate(training.schedule, step, training.steps, setup.spec.model.d_model)
            loss_sum, norm = optimizer_step(setup, batch, rate)
            observer.updated(step, batch.target_tokens, loss_sum, norm)
            observer.step_done(step, batch.pairs, batch.tokens, batch.padded_tokens, waited)

            loss = None
            if setup.should_log(step):
                loss = float(setup.strategy.sum(loss_sum)) / batch.target_tokens
                _check_finite(loss, f"training loss at step {step}")
                observer.logged(step, loss)
            history.add_step(step, batch, rate, loss, norm if loss is not None else None, waited)

            last = step == training.steps
            if last or (training.validate_every and step % training.validate_every == 0):
                observer.pause()
                value = validation_loss(setup)
                _check_finite(value, f"validation loss after step {step}")
                history.validations.append(Validation(step=step, loss=value))
                observer.validated(step, value)
                observer.resume()
            if training.checkpoint_every and step % training.checkpoint_every == 0 and not last:
                observer.pause()
                state = {"history": history.state(), "observer": observer.state()}
                checkpoint.save(checkpoints, setup, step, state)
                observer.resume()
    finally:
        batches.close()
    return history


def optimizer_step(
    trainer: Trainer, batch: GlobalBatch, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One update from one global batch.

    Returns this rank's loss sum and the norm of the whole gradient, both still on the device.
    """
    for group in trainer.optimizer.param_groups:
        group["lr"] = rate * group.get("rate_factor", 1.0)
    trainer.optimizer.zero_grad(set_to_none=True)
    # The gradient of the mean over the target tokens of all ranks and micro-batches.
    scale = trainer.strategy.loss_scale / batch.target_tokens
    loss_sum = torch.zeros((), device=trainer.device)
    final = len(batch.micro_batches) - 1
    for number, micro in enumerate(batch.micro_batches):
        with trainer.strategy.sync_context(last=number == final):
            with trainer.precision.autocast():
                loss = trainer.module(micro.source, micro.target_input, micro.target_output)
            trainer.precision.backward(loss * scale)
        loss_sum += loss.detach()
    trainer.strategy.reduce_gradients()
    norm = trainer.strategy.update(
        lambda: trainer.precision.step(
            trainer.optimizer, trainer.module.parameters(), trainer.spec.training.clip_norm
        )
    )
    return loss_sum, norm


def _check_finite(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise Diverged(f"{what} is {value}")
