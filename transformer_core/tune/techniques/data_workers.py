"""Data loaders that prepare batches in worker processes while the model trains."""

import os
from typing import TYPE_CHECKING, Any

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

    def __init__(self) -> None:
        self.made = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["loaders"]:
            return "the script uses no torch DataLoader"
        if all(loader["workers"] for loader in facts["loaders"]):
            return "the data loaders have workers already"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        loader: Any = torch.utils.data.DataLoader
        original = loader.__init__

        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            # num_workers is the sixth argument: calls with that many positional arguments stay.
            if len(args) < 6 and not kwargs.get("num_workers"):
                kwargs |= {"num_workers": workers(), "persistent_workers": True}
                self.made += 1
            original(made, *args, **kwargs)

        loader.__init__ = init

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.made else "no data loader without workers was made"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        given = {"num_workers": str(workers()), "persistent_workers": "True"}
        return source.keyword("loader", ["DataLoader"], **given)

    def lines(self, facts: dict[str, Any]) -> list[str]:
        if facts["caller"] in ("transformers", "trl"):
            return [f"Give TrainingArguments dataloader_num_workers={workers()}."]
        return [f"Give the DataLoader num_workers={workers()}, persistent_workers=True."]


class PinnedMemory(DataWorkers):
    name = "pinned_memory"
    words = "batches in pinned memory"
    group = "pinned"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "pinned memory helps copies to a GPU only"
        if not facts["loaders"]:
            return "the script uses no torch DataLoader"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        loader: Any = torch.utils.data.DataLoader
        original = loader.__init__

        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            if not kwargs.get("pin_memory") and len(args) < 8:
                kwargs["pin_memory"] = True
                self.made += 1
            original(made, *args, **kwargs)

        loader.__init__ = init

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return source.keyword("loader", ["DataLoader"], pin_memory="True")

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Give the DataLoader pin_memory=True, and copies non_blocking=True."]


ALL = [DataWorkers(), PinnedMemory()]
