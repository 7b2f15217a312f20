"""Reads a few samples again: whether reading changes the data, and whether the workers of a loader draw
the same random numbers. The process that does this trains no further."""

import time
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from transformer_core.audit.relations import Notes
from transformer_core.audit.replay import State, refused

SLOW = 2.0  # seconds for two samples; a slower data set is not read again
PATIENCE = 20.0  # seconds to wait for a worker


def read_again(loader: DataLoader[Any], notes: Notes) -> None:
    """Tests the data set of a loader."""
    state = State()
    try:
        _read_again(loader, notes, state)
    except Exception as error:
        notes.cannot("data", refused(error))
    finally:
        state.restore()


def _read_again(loader: DataLoader[Any], notes: Notes, state: State) -> None:
    data: Any = loader.dataset
    if isinstance(data, IterableDataset) or (count := _length(data)) == 0:
        notes.cannot("data", "the data set cannot read a sample by its number")
        return
    if count == 1:
        notes.cannot("data", "the data set has one sample")
        return
    if loader.num_workers > 1:
        _workers(loader, notes)
    began = time.monotonic()
    _collate(loader, data[0], data[1])  # The first time, a cache may be filled.
    if time.monotonic() - began > SLOW:
        notes.cannot("data", "a sample takes too long to read")
        return
    state.restore()
    sample = data[0]
    arrays, before = _arrays(sample), _values(sample)
    other = data[1]
    if not arrays or not _same(arrays, before):
        notes.cannot("data", "samples have no tensors, or all share their memory")
        return
    _collate(loader, sample, other)
    state.restore()
    again = _arrays(data[0])
    notes.holds("data", f"samples of {type(data).__name__} read twice")
    # A data set with random numbers of its own gives other values in other memory.
    if len(again) == len(arrays) and any(
        not _equal(old, new) and np.may_share_memory(one, new)
        for one, old, new in zip(arrays, before, again, strict=True)
    ):
        notes.found(
            "data",
            type(data).__name__,
            "reading a sample changes it in place, so its values differ in each epoch",
            "change a copy: x = x / 255 instead of x /= 255, or call x.clone() or x.copy() first",
        )


def _length(data: Any) -> int:
    """Number of samples; 0 if the data set does not tell, as that of Keras, which reads slices."""
    try:
        return len(data)
    except TypeError:
        return 0


def _collate(loader: DataLoader[Any], one: Any, two: Any) -> None:
    collate: Any = loader.collate_fn
    collate(one if loader.batch_sampler is None else [one, two])


def _workers(loader: DataLoader[Any], notes: Notes) -> None:
    """Lets two workers read the same sample twice."""
    again: Any = DataLoader(
        loader.dataset,
        sampler=[0] * 4,
        batch_size=1,
        num_workers=2,
        collate_fn=itemgetter(0),
        timeout=PATIENCE,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    one, two, later, last = map(_values, again)  # The workers take turns.
    if not _same(one, later) and _same(one, two) and _same(later, last):
        notes.found(
            "data",
            f"workers for {type(loader.dataset).__name__}",
            "a sample differs each time that a worker reads it, but all workers draw the same "
            "random numbers: each has a copy of one generator",
            "seed the data set's generator with torch.utils.data.get_worker_info().seed in "
            "worker_init_fn",
            sure=False,
        )


def _arrays(sample: Any) -> list[Any]:
    """The tensors and arrays of a sample, as arrays that share their memory."""
    if isinstance(sample, Tensor):
        tensor = sample.detach().cpu()
        return [(tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()]
    if isinstance(sample, np.ndarray):
        return [sample]
    if isinstance(sample, Mapping):
        sample = [*sample.values()]
    if isinstance(sample, list | tuple):
        return [each for part in sample for each in _arrays(part)]
    return []


def _values(sample: Any) -> list[Any]:
    """Copies of the tensors and arrays of a sample."""
    return [each.copy() for each in _arrays(sample)]


def _same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(map(_equal, one, two))


def _equal(one: Any, two: Any) -> bool:
    return np.array_equal(one, two, equal_nan=one.dtype.kind == "f")
