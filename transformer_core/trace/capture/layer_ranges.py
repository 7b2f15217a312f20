"""The modules of a model as ranges of a profiler, put around them from outside."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo import OptimizedModule

from transformer_core.trace.capture.phase_ranges import Mark
from transformer_core.trace.events.layers import SEPARATOR
from transformer_core.trace.events.phases import ALLOCATED_PREFIX, LAYER_PREFIX

ROOT = "model"
"""The path of the whole model."""

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
    if isinstance(module, OptimizedModule):
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
