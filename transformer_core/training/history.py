"""The record of a training, step by step."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from schemas.results import STEP_COLUMNS, Validation
from transformer_core.common.tables import table_of, write_table

if TYPE_CHECKING:  # a supervisor writes histories too, but does not need torch
    import torch

    from transformer_core.data.batching.feeding import GlobalBatch

STEPS = pa.schema([(name, re.split("[:,]", what)[0]) for name, what in STEP_COLUMNS.items()])


@dataclass
class History:
    """The steps, validation losses and resumptions of a run."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    checkpoint_seconds: list[float] = field(default_factory=list)
    """Durations of the pauses that checkpoints cost this process."""

    @property
    def position(self) -> tuple[int, int]:
        if not self.steps:
            return 0, 0
        return self.steps[-1]["epoch"], self.steps[-1]["batch"] + 1

    def add_step(
        self,
        step: int,
        batch: "GlobalBatch",
        rate: float,
        loss: float | None,
        norm: "torch.Tensor | None",
        waited: float,
    ) -> None:
        """Records a step. Give ``norm`` only when logging, since reading it waits for the device."""
        self.steps.append(
            {
                "step": step,
                "epoch": batch.epoch,
                "batch": batch.index,
                "learning_rate": rate,
                "loss": loss,
                "grad_norm": None if norm is None else float(norm),
                "pairs": batch.pairs,
                "tokens": batch.tokens,
                "padded_tokens": batch.padded_tokens,
                "input_wait_seconds": waited,
            }
        )

    def write(self, path: Path) -> None:
        write_table(path, table_of(self.steps, STEPS))

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "validations": [validation.model_dump() for validation in self.validations],
            "resumed_at": self.resumed_at,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        validations = [Validation.model_validate(found) for found in state["validations"]]
        return cls(state["steps"], validations, state["resumed_at"])
