"""Data loaders that prepare batches in worker processes while the model trains."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import Watch
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Technique


def workers() -> int:
    """One for each core beyond the first, at most four."""
    return max(1, min(4, len(os.sched_getaffinity(0)) - 1))


class DataWorkers(Technique):
    name = "data_workers"
    words = "data loaders with worker processes"
    group = "data"
    rounding = "exact"
    idle = "no data loader without workers was made"
    advice = f"Give the DataLoader num_workers={workers()}."
    for_trainer = f"Give TrainingArguments dataloader_num_workers={workers()}."
    position: ClassVar[int] = 6
    """Number of this argument among all: a call with so many positional ones has it."""

    given: ClassVar[Mapping[str, Any]] = {"num_workers": workers()}
    """An argument for data loaders that do not set it."""

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["loaders"]:
            return "the script uses no torch DataLoader"
        if all(loader["workers"] for loader in facts["loaders"]):
            return "the data loaders have workers already"
        return None

    def prepare(self, watch: Watch) -> None:
        @replacing(DataLoader, "__init__")
        def init(original: Any, made: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) < self.position and not kwargs.get(next(iter(self.given))):
                kwargs |= self.given
                self.applied += 1
            original(made, *args, **kwargs)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        given = {key: str(value) for key, value in self.given.items()}
        # A loader that has them may be the one that matters, and its number of workers an argument.
        names = ["DataLoader"]
        return source.keyword("loader", names, given, whole=True, positional=self.position)


class PinnedMemory(DataWorkers):
    name = "pinned_memory"
    words = "batches in pinned memory"
    group = "pinned"
    idle = "every data loader pins its memory already"
    advice = "Give the DataLoader pin_memory=True, and copies non_blocking=True."
    for_trainer = ""
    position = 8
    given: ClassVar[Mapping[str, Any]] = {"pin_memory": True}

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "pinned memory speeds up only copies to a GPU"
        return None if facts["loaders"] else "the script uses no torch DataLoader"
