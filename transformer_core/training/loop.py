"""The training loop. It knows no techniques, which belong to strategy, precision and observer, except
that CUDA graphs are recorded before the first step."""

import gc
import math
import time
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path

import torch

from schemas.errors import Diverged
from schemas.results import Validation
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.models.compiled_layers import UNPLAYED
from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup, Trainer
from transformer_core.training.evaluation import averaged, validation_loss
from transformer_core.training.history import History
from transformer_core.training.observer import Observer
from transformer_core.training.optimizer import learning_rate

_SEARCHED = 400
"""Number of batches of the first epoch whose shapes we record; batching rounds widths and rows, so
few new shapes occur later."""


def train(
    setup: Setup, observer: Observer, checkpoints: Path, validate_last: bool = True
) -> History:
    """Trains to the last step, from the newest checkpoint in ``checkpoints`` if there is one, and
    then validates if ``validate_last``.

    Raises Diverged as soon as it reads a loss that is not finite.
    """
    training = setup.spec.training
    history = History()
    done = 0
    if path := checkpoint.latest(checkpoints, setup):
        done, state = checkpoint.load(path, setup)
        history = History.from_state(state["history"])
        history.resumed_at.append(done)
        if state.get("device", setup.device.type) == setup.device.type:  # else of another machine
            observer.load(state["observer"])

    setup.module.train()
    _record_graphs(setup)
    compiles = getattr(setup.model, "compile_kind", "none") != "none"
    batches = setup.strategy.batches(setup.feed, *history.position)
    # Without collections between steps, exclude everything allocated so far from later ones.
    if setup.spec.machine.garbage_collection == "off":
        gc.freeze()
        gc.disable()
    observer.start(done)
    try:
        for step in range(done + 1, training.steps + 1):
            asked = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - asked
            if compiles and step == done + 1:
                # Compiling may take longer than a peer may be silent.
                setup.strategy.rest()

            rate = learning_rate(
                setup.spec.schedule, step, training.steps, setup.spec.model.d_model
            )
            loss_sum, norm = optimizer_step(setup, batch, rate)
            observer.updated(step, batch.target_tokens, loss_sum, norm)
            loss = None
            if step % training.log_every == 0 or step in (1, training.steps):
                loss = float(setup.strategy.sum(loss_sum)) / batch.target_tokens
                _check_finite(loss, f"training loss at step {step}")
                observer.logged(step, loss)
            history.add_step(step, batch, rate, loss, norm if loss is not None else None, waited)
            # After all reads, since waiting for the device is part of the step's time.
            observer.step_done(step, batch.pairs, batch.tokens, batch.padded_tokens, waited)

            last = step == training.steps
            due = training.validate_every and step % training.validate_every == 0
            if due or (last and validate_last):
                _validate(setup, observer, history, step)
            if training.checkpoint_every and step % training.checkpoint_every == 0 and not last:
                _save(setup, observer, history, step, checkpoints)
    except BaseException:
        checkpoint.finish_after_error()
        raise
    finally:
        batches.close()
        gc.unfreeze()
        gc.enable()
    checkpoint.wait()
    if hasattr(setup.optimizer, "eval"):  # the final weights are the optimizer's averages
        setup.optimizer.eval()
        setup.strategy.weights_exchanged()
    return history


def _record_graphs(setup: Setup) -> None:
    """Records the CUDA graphs of a training before its first step: runs forward and backward, without
    updates, on one batch of each shape, as often as recording takes. Does nothing unless the layers
    use graphs, and does not change the random numbers of the training.

    torch records a graph when a layer sees inputs of a new shape for the second time. Recording takes
    as long as many steps, so a new shape within a timed window would spoil the measurement.
    """
    if getattr(setup.model, "compile_kind", "none") != "graphs":
        return
    seen: set[tuple[object, ...]] = set()
    devices = [device for device in setup.strategy.devices if device.type == "cuda"]
    with (
        torch.random.fork_rng(devices),
        closing(setup.strategy.batches(setup.feed, 0, 0)) as batches,
    ):
        first = takewhile(lambda batch: batch.epoch == 0, batches)
        for batch in islice(first, min(_SEARCHED, setup.spec.training.steps)):
            for micro in batch.micro_batches:
                # Without padding in the sources, layers get no mask, which takes another graph.
                sizes = (each.shape for each in micro.fields if isinstance(each, torch.Tensor))
                shape = (micro.known.source_full, *sizes)
                repeats = 0 if shape in seen else UNPLAYED
                seen.add(shape)
                for _ in range(repeats):
                    setup.optimizer.zero_grad(set_to_none=True)
                    with setup.precision.autocast():
                        loss = setup.module(*micro.fields)
                    setup.precision.backward(loss * 0)
    setup.optimizer.zero_grad(set_to_none=True)


def _validate(setup: Setup, observer: Observer, history: History, step: int) -> None:
    observer.pause()
    if not gc.isenabled():
        gc.collect()
    with averaged(setup):
        value = validation_loss(setup)
    _check_finite(value, f"validation loss after step {step}")
    history.validations.append(Validation(step=step, loss=value))
    observer.validated(step, value)
    observer.resume()


def _save(setup: Setup, observer: Observer, history: History, step: int, checkpoints: Path) -> None:
    observer.pause()
    state = {"history": history.state(), "observer": observer.state(), "device": setup.device.type}
    asked = time.perf_counter()
    checkpoint.save(checkpoints, setup, step, state)
    history.checkpoint_seconds.append(time.perf_counter() - asked)
    observer.resume()


def optimizer_step(
    trainer: Trainer, batch: GlobalBatch, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes one update from one global batch.

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
                loss = trainer.module(*micro.fields)
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
