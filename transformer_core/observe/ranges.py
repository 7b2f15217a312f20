"""Wraps the phases of a training step, from outside, in ranges of a profiler; and the two profilers,
as used by the profiled process. Few imports: observers of users' scripts use it.

The training loop calls methods of the strategy, module and precision; a capture wraps these methods.
A timed run does not.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from schemas.errors import Unsupported
from transformer_core.observe.nsys import DOMAIN
from transformer_core.trace.events.phases import (
    ALLOCATED_PREFIX,
    BACKWARD,
    CAPTURE_RANGE,
    DATA,
    FORWARD,
    LAYER_PREFIX,
    LOSS,
    OPTIMIZER,
    SEPARATOR,
)

if TYPE_CHECKING:
    from transformer_core.data.batching.feeding import Feed, GlobalBatch
    from transformer_core.training.assemble import Setup

Mark = Callable[[str], AbstractContextManager[Any]]
"""Makes a range from its name, or from that of a phase (see :func:`label`)."""

torch_range: Mark = torch.profiler.record_function


def mark_phases(setup: "Setup", mark: Mark) -> None:
    """Encloses every phase of ``setup``'s training in a range.

    The loss is nested in the forward pass, or part of it if computed in chunks. The backward phase
    includes reductions of gradients outside the backward pass itself; the optimizer phase includes
    gradient clipping.
    """
    from transformer_core.models.objective import Objective

    strategy, precision = setup.strategy, setup.precision
    # Replaced on these objects rather than their classes: a run has one of each.
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (strategy, "batches", _in_data(strategy.batches, mark)),
        (strategy, "sync_context", _leaving_in_backward(strategy.sync_context, mark)),
        (precision, "backward", _within(precision.backward, BACKWARD, mark)),
        (strategy, "reduce_gradients", _within(strategy.reduce_gradients, BACKWARD, mark)),
        (strategy, "update", _within(strategy.update, OPTIMIZER, mark)),
    ]
    for module in setup.module.modules():
        if isinstance(module, Objective):
            replaced.append((module, "loss", _within(module.loss, LOSS, mark)))
    for owner, name, function in replaced:
        setattr(owner, name, function)
    mark_forward(setup.module, mark)


def _within(function: Callable[..., Any], phase: str, mark: Mark) -> Callable[..., Any]:
    """``function``, with every call in the range of a phase."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with mark(phase):
            return function(*args, **kwargs)

    return wrapped


Batches = Callable[["Feed", int, int], "Generator[GlobalBatch, None, None]"]


def _in_data(batches: Batches, mark: Mark) -> Batches:
    def wrapped(feed: "Feed", epoch: int, batch: int) -> "Generator[GlobalBatch, None, None]":
        with contextlib.closing(batches(feed, epoch, batch)) as endless:
            while True:
                with mark(DATA):
                    item = next(endless)
                yield item

    return wrapped


Context = Callable[[bool], AbstractContextManager[Any]]


def _leaving_in_backward(sync_context: Context, mark: Mark) -> Context:
    """A strategy's context of a micro-batch, whose exit is in the range of the backward phase."""

    @contextlib.contextmanager
    def wrapped(last: bool) -> Iterator[None]:
        with contextlib.ExitStack() as context:
            context.enter_context(sync_context(last))
            yield
            # Some strategies reduce here.
            with mark(BACKWARD):
                context.close()

    return wrapped


def mark_forward(module: nn.Module, mark: Mark) -> None:
    """Encloses every call of ``module`` in the range of the forward phase."""
    _mark(module, FORWARD, mark)


def allocated_mark(device: torch.device) -> Callable[[], str] | None:
    """Names marks by the bytes currently allocated on a GPU; None for a CPU.

    torch.profiler records no allocator events when it records all threads.
    """
    if device.type != "cuda":
        return None
    return lambda: f"{ALLOCATED_PREFIX}{device.index or 0}:{torch.cuda.memory_allocated(device)}"


def mark_layers(model: nn.Module, mark: Mark, allocated: Callable[[], str] | None = None) -> None:
    """Encloses every call of a module of ``model`` in a range named after its path.

    ``mark`` makes a range from its full name. ``allocated`` names the marks set at the beginning and
    end of each call. Modules inside compiled ones have no ranges: their hooks would be compiled,
    too, and change the measurement.
    """

    def told() -> None:
        if allocated is not None:
            with mark(allocated()):
                pass

    for path, module in eager(model, "model", set()):
        _mark(module, LAYER_PREFIX + path, mark, told)


def compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called. Changes that tune-training makes to calls are in the same
    slot, around a compiled call or a plain one."""
    call: Any = module._compiled_call_impl
    while isinstance(call, partial):
        call = call.args[0]
    return hasattr(call, "_torchdynamo_orig_callable")


def eager(module: nn.Module, path: str, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The modules outside compiled ones, with their paths; one that several others share has its first path."""
    if compiled_in_place(module) or module in seen:
        return
    seen.add(module)
    yield path, module
    if hasattr(module, "_orig_mod"):  # torch.compile(module)
        return
    for name, child in module.named_children():
        yield from eager(child, f"{path}{SEPARATOR}{name}", seen)


def _mark(
    module: nn.Module, name: str, mark: Mark, told: Callable[[], None] = lambda: None
) -> None:
    """Encloses every call in a range, by hooks rather than a wrapper, since a strategy may need the
    module it made."""
    opened = threading.local()  # replicas run the same modules in parallel

    def enter(*_: Any) -> None:
        told()
        opened.__dict__.setdefault("ranges", []).append(mark(name))
        opened.ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        told()
        opened.ranges.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    # Recomputation of a checkpoint ends with an exception as soon as it has all it needs.
    module.register_forward_hook(leave, always_call=True)


class TorchRecording:
    """torch.profiler, with the shapes of the operators' inputs."""

    range_named = staticmethod(torch_range)

    def __init__(self, output: Path, rank: int, device: torch.device) -> None:
        self.output = output
        self.name = f"rank-{rank}.pt.trace.json.gz"
        self.cuda = device.type == "cuda"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # All threads: some techniques communicate on threads of their own.
        try:
            every = torch.profiler._ExperimentalConfig(profile_all_threads=True)
        except TypeError as error:
            raise Unsupported(
                f"a profile of all threads needs torch 2.7 or newer; this is {torch.__version__}"
            ) from error
        self.profiler = torch.profiler.profile(
            activities=activities, record_shapes=True, experimental_config=every
        )
        self.prepare, self.start = self.profiler.prepare_trace, self.profiler.start_trace
        self.stop = self.profiler.stop_trace

    def save(self) -> list[str]:
        results: Any = self.profiler.profiler.kineto_results  # type: ignore[union-attr]
        cuda = torch.autograd.DeviceType.CUDA
        if self.cuda and not any(event.device_type() == cuda for event in results.events()):
            raise Unsupported(
                "torch.profiler recorded no CUDA kernel: CUPTI may be missing, in use by another "
                "profiler, or not permitted here (NVreg_RestrictProfilingToAdminUsers)"
            )
        self.profiler.export_chrome_trace(str(self.output / self.name))
        return [self.name]


class NsysRecording:
    """Nsight Systems, which started this process and waits for the capture range."""

    def __init__(self, device: torch.device) -> None:
        import nvtx  # needed only by Nsight Systems

        self.nvtx, self.cuda = nvtx, device.type == "cuda"
        self.range: Any = None

    def range_named(self, name: str) -> AbstractContextManager[Any]:
        return self.nvtx.annotate(name, domain=DOMAIN)

    def prepare(self) -> None:
        pass

    def start(self) -> None:
        if self.cuda:
            torch.cuda.profiler.start()
        self.range = self.nvtx.start_range(CAPTURE_RANGE, domain=DOMAIN)

    def stop(self) -> None:
        self.nvtx.end_range(self.range)
        if self.cuda:
            torch.cuda.profiler.stop()

    def save(self) -> list[str]:
        return []  # nsys writes the files after this process has ended


Recording = TorchRecording | NsysRecording
