"""An optimizer step whose memory is tracked, or whose stages are observed."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from schemas.results import PARTS, Parts, TimelinePoint
from transformer_core.data.batching.feeding import GlobalBatch
from transformer_core.training.assemble import Trainer
from transformer_core.training.loop import optimizer_step
from transformer_core.training.precision import Precision

LEARNING_RATE = 1e-4  # small, so that numbers stay finite: learning does not matter here


class WatchedPrecision(Precision):
    """``inner``, which calls ``watch`` when a ``forward``, a ``backward`` and the ``update`` end."""

    def __init__(self, inner: Precision, watch: Callable[[str], None]) -> None:
        self.inner = inner
        self.watch = watch

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return self.inner.autocast()

    def backward(self, loss: Tensor) -> None:
        self.watch("forward")
        self.inner.backward(loss)
        self.watch("backward")

    def step(
        self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_norm: float
    ) -> Tensor:
        norm = self.inner.step(optimizer, parameters, clip_norm)
        self.watch("update")
        return norm


def watched_step(trainer: Trainer, batch: GlobalBatch, watch: Callable[[str], None]) -> None:
    precision = WatchedPrecision(trainer.precision, watch)
    trainer.strategy.rest()  # the first one may compile
    optimizer_step(replace(trainer, precision=precision), batch, LEARNING_RATE)


@dataclass(eq=False)
class Storage:
    """The life of one storage; times are numbers of operations."""

    size: int
    born: int
    died: int | None = None
    labels: set[str] = field(default_factory=set)


class StorageTracker(TorchDispatchMode):
    """While active, tracks all storages on devices of one type.

    It sees operations; callers add the purposes of storages (:meth:`label`). torch's own tracker (torch.distributed._tools.mem_tracker) does
    not know messages, buckets and copies of weights, and takes three times as long.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.storages: list[Storage] = []
        self.alive: dict[int, tuple[Storage, Any]] = {}
        self.operations = 0
        self._resize: Any = None

    def __enter__(self) -> "StorageTracker":
        # FSDP frees and refills gathered weights by resizing their storage, which is no operation.
        self._resize = resize = torch.UntypedStorage.resize_

        def followed(storage: torch.UntypedStorage, size: int) -> Any:
            known = self.alive.get(storage._cdata)
            result = resize(storage, size)
            if known is not None and known[0].size != size:
                self._resized(storage, known[0], size)
            return result

        torch.UntypedStorage.resize_ = followed  # type: ignore[assignment,method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)  # the most frequent call on fake tensors
        if any(issubclass(kind, DTensor) for kind in types):
            # It becomes operations on the shards, which are dispatched here again.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for tensor in _tensors(result):
            self._see(tensor)
        if func.namespace in _MESSAGES:
            for tensor in _tensors((args, kwargs, result)):
                self._label(tensor, "message")
            if self.device_type == "cpu":
                self._flatten(func, args)
        elif func is torch.ops.aten._to_copy.default and result.dtype in _HALVES:
            self._label_copy(args[0], result)
        return result

    def label(self, tensors: Iterable[Any], label: str) -> None:
        """Labels the tensors among these objects by purpose, such as weights or gradients."""
        for tensor in tensors:
            for part in _plain(tensor):
                self._see(part)
                self._label(part, label)

    def _see(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device_type:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self.alive:
            self._begin(storage, Storage(storage.nbytes(), self.operations))

    def _flatten(self, func: Any, args: tuple[Any, ...]) -> None:
        """Count the flat copy that gloo works on."""
        place = _FLATTENED.get(func._schema.name)
        if place is None:
            return
        size = sum(tensor.nbytes for tensor in _tensors(args[place]))
        if size:
            self.storages.append(Storage(size, self.operations, self.operations, {"message"}))

    def _begin(self, storage: torch.UntypedStorage, record: Storage) -> None:
        key = storage._cdata

        def end(_: Any) -> None:
            found, _ = self.alive.pop(key)
            found.died = self.operations

        self.storages.append(record)
        self.alive[key] = record, weakref.ref(storage, end)

    def _resized(self, storage: torch.UntypedStorage, old: Storage, size: int) -> None:
        old.died = self.operations
        new = Storage(size, self.operations, labels=set(old.labels))
        self.storages.append(new)
        self.alive[storage._cdata] = new, self.alive[storage._cdata][1]

    def _label(self, tensor: Tensor, label: str) -> None:
        known = self.alive.get(tensor.untyped_storage()._cdata)
        if known is not None:
            known[0].labels.add(label)

    def _label_copy(self, original: Tensor, copy: Tensor) -> None:
        known = self.alive.get(original.untyped_storage()._cdata)
        if known is not None and "weights" in known[0].labels:
            known[0].labels.add("master")
            self._label(copy, "copy")


@dataclass(frozen=True)
class Interval:
    """A part of a step: the operations after number ``start``, up to number ``end``."""

    phase: str
    start: int
    end: int


class StepMemory:
    """The memory of one step as :class:`StorageTracker` saw it, divided into phases."""

    def __init__(self, tracker: StorageTracker, phases: list[Interval]) -> None:
        self.start, self.end = phases[0].start, phases[-1].end
        self.phases = phases
        forwards = [phase for phase in phases if phase.phase == "forward"]
        self.by_part = np.zeros((len(PARTS), self.end - self.start + 2), np.int64)
        for record in tracker.storages:
            if record.born > self.end or (record.died is not None and record.died <= self.start):
                continue
            first = max(record.born, self.start) - self.start
            # A result coexists with the arguments that its operation frees.
            last = (self.end if record.died is None else min(record.died, self.end)) - self.start
            part = PARTS.index(self._part(record, forwards))
            self.by_part[part, first] += record.size
            self.by_part[part, last + 1] -= record.size
        self.by_part = self.by_part.cumsum(axis=1)[:, :-1]
        self.total: NDArray[np.int64] = self.by_part.sum(axis=0)

    def _part(self, record: Storage, forwards: list[Interval]) -> str:
        labels = record.labels
        if "weights" in labels:
            return "master_weights_bytes" if "master" in labels else "weights_bytes"
        if "copy" in labels:
            return "weights_bytes"
        for label in ("gradients", "optimizer"):
            if label in labels:
                return f"{label}_bytes"
        if "other" in labels:
            return "temporary_bytes"
        if record.born <= self.start:
            return "buckets_bytes"
        if "message" in labels:
            return "communication_bytes"
        kept = any(
            forward.start < record.born <= forward.end
            and (record.died is None or record.died > forward.end)
            for forward in forwards
        )
        return "activations_bytes" if kept else "temporary_bytes"

    @property
    def at_peak(self) -> Parts:
        return self._parts(self.by_part[:, int(self.total.argmax())])

    @property
    def largest(self) -> Parts:
        return self._parts(self.by_part.max(axis=1))

    def timeline(self, points: int) -> list[TimelinePoint]:
        """The course of the step: the largest moment of each of about ``points`` intervals."""
        moments = self.end - self.start + 1
        result = []
        for phase in self.phases:
            width = phase.end - phase.start
            count = max(1, round(points * width / moments))
            cuts = np.linspace(phase.start, phase.end, count + 1).astype(int) - self.start
            for begin, end in itertools.pairwise(cuts):
                at = begin + int(self.total[begin : max(end, begin + 1)].argmax())
                result.append(
                    TimelinePoint.model_validate(
                        {
                            "phase": phase.phase,
                            "position": at / max(1, moments - 1),
                            "parts": self._parts(self.by_part[:, at]),
                        }
                    )
                )
        return result

    @staticmethod
    def _parts(values: NDArray[np.int64]) -> Parts:
        return Parts(**dict(zip(PARTS, values.tolist(), strict=True)))


def followed_step(
    trainer: Trainer,
    batch: GlobalBatch,
    tracker: StorageTracker,
    watch: Callable[[str], None] = lambda moment: None,
) -> StepMemory:
    """Takes an optimizer step inside ``tracker``; returns its memory by purpose."""
    phases: list[Interval] = []
    begin = tracker.operations

    def seen(moment: str) -> None:
        nonlocal begin
        if moment == "backward":
            tracker.label((p.grad for p in trainer.module.parameters()), "gradients")
        if moment in ("forward", "backward"):
            phases.append(Interval(moment, begin, tracker.operations))
            begin = tracker.operations
        watch(moment)

    tracker.label(trainer.model.parameters(), "weights")
    for micro in batch.micro_batches:
        tracker.label((micro.source, micro.target_input, micro.target_output), "other")
    watched_step(trainer, batch, seen)
    # After the step: some are created in the first one.
    tracker.label(tables(trainer.model), "other")
    for state in trainer.optimizer.state.values():
        tracker.label(state.values(), "optimizer")
    phases.append(Interval("update", begin, tracker.operations))
    return StepMemory(tracker, phases)


def tables(model: nn.Module) -> list[Tensor]:
    """Buffers, and the tensors that modules keep as plain attributes or in dictionaries."""
    found = list(model.buffers())
    for module in model.modules():
        for value in vars(module).values():
            values = value.values() if isinstance(value, dict) else (value,)
            found += [one for one in values if isinstance(one, torch.Tensor)]
    return [one for one in found if not isinstance(one, nn.Parameter)]


_MESSAGES = frozenset({"c10d", "_c10d_functional", "fsdp"})
"""Namespaces of operations whose tensors are messages."""

_HALVES = (torch.float16, torch.bfloat16)

_FLATTENED = {
    "c10d::gather_": 0,
    "c10d::allgather_": 0,
    "c10d::_allgather_base_": 0,
    "c10d::_reduce_scatter_base_": 1,
}
"""Operations for which gloo's threads make an unobserved flat copy of an argument, and the number of
this argument."""


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _plain(tensor: Any) -> list[Tensor]:
    """The plain tensors inside a sharded or quantized one; none for other objects."""
    if not isinstance(tensor, Tensor):
        return []
    if isinstance(tensor, DTensor):
        return _plain(tensor._local_tensor)
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _plain(getattr(tensor, name))]
    return [tensor]
