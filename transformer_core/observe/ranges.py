"""The phases of a training step as ranges of a profiler, put around a training from outside.

The training loop calls strategy, module and precision; a capture wraps what they offer. A timed run
has none of this.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from transformer_core.observe.nsys import DOMAIN
from transformer_core.trace.events.phases import (
    ALLOCATED_PREFIX,
    BACKWARD,
    DATA,
    FORWARD,
    LAYER_PREFIX,
    LOSS,
    OPTIMIZER,
    SEPARATOR,
    label,
)

if TYPE_CHECKING:
    from transformer_core.data.batching.feeding import Feed, GlobalBatch
    from transformer_core.training.assemble import Setup

Mark = Callable[[str], contextlib.AbstractContextManager[Any]]
"""Makes a range by its name, or that of a phase, which its :func:`label` names."""


def torch_range(name: str) -> contextlib.AbstractContextManager[Any]:
    return torch.profiler.record_function(name)


def nvtx_range(name: str) -> contextlib.AbstractContextManager[Any]:
    import nvtx  # only where Nsight Systems records

    return nvtx.annotate(name, domain=DOMAIN)


def of_phases(range_named: Mark) -> Mark:
    """Makes the range of a phase with what makes one by its name."""
    return lambda phase: range_named(label(phase))


def mark_phases(setup: "Setup", mark: Mark) -> None:
    """Let every phase of ``setup``'s training lie in a range of its own.

    The loss lies within the forward pass, or is a part of it where it is computed in chunks. A
    reduction of gradients outside the backward pass proper belongs to the backward phase, and
    gradient clipping to the optimizer.
    """
    from transformer_core.models.objective import Objective

    strategy, precision = setup.strategy, setup.precision
    replace(strategy, "batches", _in_data(strategy.batches, mark))
    replace(strategy, "sync_context", leaving_in_backward(strategy.sync_context, mark))
    replace(precision, "backward", within(precision.backward, BACKWARD, mark))
    replace(strategy, "reduce_gradients", within(strategy.reduce_gradients, BACKWARD, mark))
    replace(strategy, "update", within(strategy.update, OPTIMIZER, mark))
    for module in setup.module.modules():
        if isinstance(module, Objective):
            replace(module, "loss", within(module.loss, LOSS, mark))
    mark_forward(setup.module, mark)


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a method of this one object with ``function``."""
    setattr(owner, name, function)


def within(function: Callable[..., Any], phase: str, mark: Mark) -> Callable[..., Any]:
    """``function``, every call of which lies in the range of a phase."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with mark(phase):
            return function(*args, **kwargs)

    return wrapped


def _in_data(
    batches: "Callable[[Feed, int, int], Generator[GlobalBatch, None, None]]", mark: Mark
) -> "Callable[[Feed, int, int], Generator[GlobalBatch, None, None]]":
    def wrapped(feed: "Feed", epoch: int, batch: int) -> "Generator[GlobalBatch, None, None]":
        with contextlib.closing(batches(feed, epoch, batch)) as endless:
            while True:
                with mark(DATA):
                    item = next(endless)
                yield item

    return wrapped


def leaving_in_backward(
    sync_context: Callable[[bool], contextlib.AbstractContextManager[Any]], mark: Mark
) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
    """A strategy's context of a micro-batch, whose end lies in the range of the backward phase."""

    @contextlib.contextmanager
    def wrapped(last: bool) -> Iterator[None]:
        with contextlib.ExitStack() as context:
            context.enter_context(sync_context(last))
            yield
            # Some strategies reduce here.
            with mark(BACKWARD):
                context.close()

    return wrapped


def mark_forward(module: torch.nn.Module, mark: Mark, phase: str = FORWARD) -> None:
    """Let every call of ``module`` lie in the range of a phase."""
    # Hooks, not a wrapped method: a strategy may need to find the very module it made.
    ranges: list[contextlib.AbstractContextManager[Any]] = []

    def enter(*_: Any) -> None:
        ranges.append(mark(phase))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


ROOT = "model"  # the path of the whole model

Range = contextlib.AbstractContextManager[Any]


class _Open(threading.local):
    """The ranges that a thread is in: replicas run the same modules at the same time."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []


def allocated_mark(device: torch.device) -> Callable[[], str] | None:
    """The name of a mark of how much is allocated on a GPU at the moment; null for a CPU.

    torch.profiler records no events of allocators where it records all threads.
    """
    if device.type != "cuda":
        return None
    return lambda: f"{ALLOCATED_PREFIX}{device.index or 0}:{torch.cuda.memory_allocated(device)}"


def mark_layers(model: nn.Module, mark: Mark, allocated: Callable[[], str] | None = None) -> None:
    """Let every call of a module of ``model`` lie in a range that names its path.

    ``mark`` makes a range by its whole name. ``allocated`` names what is set as a mark where a call
    begins and ends. What is compiled is not entered: hooks would be compiled with it, and change
    what is measured.
    """

    def told() -> None:
        if allocated is not None:
            with mark(allocated()):
                pass

    for path, module in _modules(model, ROOT):
        _mark(module, LAYER_PREFIX + path, mark, told)


def _modules(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    if module._compiled_call_impl is not None:
        return
    yield path, module
    if hasattr(module, "_orig_mod"):  # torch.compile(module)
        return
    for name, child in module.named_children():
        yield from _modules(child, f"{path}{SEPARATOR}{name}")


def _mark(module: nn.Module, name: str, mark: Mark, told: Callable[[], None]) -> None:
    opened = _Open()

    def enter(*_: Any) -> None:
        told()
        opened.ranges.append(mark(name))
        opened.ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        told()
        opened.ranges.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    # Recomputing a checkpoint ends with an exception as soon as it has what it needs.
    module.register_forward_hook(leave, always_call=True)
