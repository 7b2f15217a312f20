"""Predicted memory of runs: results/memory/predicted.json."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Bytes, Elapsed, Few, Many, SignedBytes
from schemas.results.memory import BatchShape, Parts


class PredictedRank(Schema):
    """The predicted memory of one rank."""

    rank: Few
    """Global rank. Ranks with equal work are predicted once."""
    batch: BatchShape
    """The micro-batch with the largest memory need."""
    at_peak: Parts
    """The parts at the peak of a training step."""
    anatomy: Parts
    """Each part at its own maximum."""
    training_bytes: Bytes
    """Tensor bytes at the peak of a training step."""
    validation_bytes: Bytes
    """Tensor bytes at the peak of a validation between two steps."""

    @property
    def peak_bytes(self) -> int:
        """Tensor bytes at the peak of the run."""
        return max(self.training_bytes, self.validation_bytes)


class Prediction(Schema):
    """Predicted memory of a run spec, determined without running it."""

    variant: str
    """Name of the variant."""
    status: Literal["ok", "unsupported", "failed"]
    """Whether there is a prediction."""
    reason: str | None
    """Why there is no prediction, in a sentence."""
    device: Literal["cpu", "cuda"] | None
    """Kind of device that the prediction is for."""
    parameters: Many | None
    """Trainable parameters of the whole model."""
    ranks: list[PredictedRank]
    """Rank 0, plus rank 1 if the other ranks do different work."""
    context_bytes: SignedBytes | None
    """Device memory that a process uses before it has any tensor, measured on this machine: the
    resident set on a CPU, NVML's number on a GPU; null if it could not be measured."""
    capacity_bytes: Bytes | None
    """Memory of a device, or each process's share of the host's memory; null if unknown."""
    notes: list[str]
    """Caveats about the prediction."""
    seconds: Elapsed
    """Time that the prediction took."""

    @property
    def peak_bytes(self) -> int | None:
        """Peak tensor bytes of the heaviest rank; null without a prediction."""
        return max((rank.peak_bytes for rank in self.ranks), default=None)

    @property
    def process_bytes(self) -> int | None:
        """The same plus the context; null if either is unknown."""
        if self.peak_bytes is None or self.context_bytes is None:
            return None
        return self.peak_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has enough memory; null if unknown."""
        if self.process_bytes is None or self.capacity_bytes is None:
            return None
        return self.process_bytes <= self.capacity_bytes


class PredictedMemory(Schema):
    """results/memory/predicted.json."""

    predictions: list[Prediction]
    """The variants of the study, in its order."""
