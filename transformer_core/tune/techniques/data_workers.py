"""Data loaders that prepare batches in worker processes while the model trains."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source


def workers() -> int:
    """As many as there are cores beyond the first, at most four."""
    return max(1, min(4, len(os.sched_getaffinity(0)) - 1))


class DataWorkers(Technique):
    name = "data_workers"
    words = "data loaders with persistent worker processes"
    group = "data"
    rounding = "exact"
    position: ClassVar[int] = 6
    """Place of the first keyword among the arguments: calls with that many positional ones stay."""

    def __init__(self) -> None:
        self.made = 0

    def keywords(self) -> dict[str, Any]:
        """What data loaders are given unless the first of these is there."""
        return {"num_workers": workers(), "persistent_workers": True}

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["loaders"]:
            return "the script uses no torch DataLoader"
        if all(loader["workers"] for loader in facts["loaders"]):
            return "the data loaders have workers already"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        loader: Any = torch.utils.data.DataLoader
        original, given = loader.__init__, self.keywords()

        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) < self.position and not kwargs.get(next(iter(given))):
                kwargs |= given
                self.made += 1
            original(made, *args, **kwargs)

        loader.__init__ = init

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.made else "no data loader without workers was made"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        given = {key: str(value) for key, value in self.keywords().items()}
        return source.keyword("loader", ["DataLoader"], **given)

    def lines(self, facts: dict[str, Any]) -> list[str]:
        if facts["caller"] in ("transformers", "trl"):
            return [f"Give TrainingArguments dataloader_num_workers={workers()}."]
        return [f"Give the DataLoader num_workers={workers()}, persistent_workers=True."]


class PinnedMemory(DataWorkers):
    name = "pinned_memory"
    words = "batches in pinned memory"
    group = "pinned"
    position = 8

    def keywords(self) -> dict[str, Any]:
        return {"pin_memory": True}

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "pinned memory helps copies to a GPU only"
        if not facts["loaders"]:
            return "the script uses no torch DataLoader"
        return None

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Give the DataLoader pin_memory=True, and copies non_blocking=True."]


ALL = [DataWorkers(), PinnedMemory()]
