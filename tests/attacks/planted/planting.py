"""How a fault is planted: patches of one place each."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.parallel.strategy import Strategy
from transformer_core.training import loop, precision

Patch = Callable[[], AbstractContextManager[Any]]


def swap(where: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """A patch that replaces an attribute, or an entry of a dict, by ``make(original)``."""

    def patch() -> AbstractContextManager[Any]:
        if isinstance(where, dict):
            return mock.patch.dict(where, {name: make(where[name])})
        static = isinstance(vars(where).get(name), staticmethod) if isinstance(where, type) else 0
        made = make(getattr(where, name))
        return mock.patch.object(where, name, staticmethod(made) if static else made)

    return patch


def put(where: Any, name: str, value: Any) -> Patch:
    """A patch that replaces an attribute by ``value``."""
    return lambda: mock.patch.object(where, name, value)


def several(*patches: Patch) -> Patch:
    """All ``patches`` at once."""

    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


def calling(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Replaces the original by ``change``, which gets the original before the arguments."""
    return lambda real: lambda *args, **named: change(real, *args, **named)


def arguments(change: Callable[..., tuple[Any, ...]]) -> Callable[[Any], Any]:
    return lambda real: lambda *args, **named: real(*change(*args), **named)


def result(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda real: lambda *args, **named: change(real(*args, **named))


def around_step(after: Callable[..., None]) -> Patch:
    """A patch that calls after(trainer, weights before, number) after each update."""

    def make(real: Any) -> Any:
        count = itertools.count(1)

        def step(trainer: Any, batch: Any, rate: float) -> Any:
            before = [p.detach().clone() for p in trainer.model.parameters()]
            done = real(trainer, batch, rate)
            with torch.no_grad():
                after(trainer, before, next(count))
            return done

        return step

    return swap(loop, "optimizer_step", make)


def keep(chosen: Callable[[str, int], bool]) -> Patch:
    """A patch that keeps weights unchanged if ``chosen(name, step)``."""

    def after(trainer: Any, before: list[Tensor], number: int) -> None:
        for (name, p), old in zip(trainer.model.named_parameters(), before, strict=True):
            if chosen(name, number):
                p.copy_(old)

    return around_step(after)


def before_update(change: Callable[..., None]) -> Patch:
    """A patch that calls change(parameters) after the gradients are unscaled."""

    def step(real: Any, self: Any, optim: Any, parameters: Any, clip: float) -> Any:
        parameters = list(parameters)
        with torch.no_grad():
            change(parameters)
        return real(self, optim, parameters, clip)

    return swap(precision.Precision, "step", calling(step))


def batches(change: Callable[[GlobalBatch], GlobalBatch]) -> Patch:
    """A patch that changes the batches of a training."""

    def made(real: Any, self: Any, feed: Feed, epoch: int, batch: int) -> Iterator[GlobalBatch]:
        for item in real(self, feed, epoch, batch):
            yield change(item)

    return swap(Strategy, "batches", calling(made))


def each_micro(change: Callable[[Any], Any]) -> Patch:
    """A patch that changes the micro-batches of a training."""
    return batches(lambda b: replace(b, micro_batches=[change(m) for m in b.micro_batches]))


TAKE_A_FUNCTION = around_step, keep, before_update, batches, each_micro
"""Functions that make a patch from a function."""
