"""What the memory of runs will be: results/memory/predicted.json."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Bytes, Elapsed, Few, Many, SignedBytes
from schemas.results.memory import BatchShape, Parts


class PredictedRank(Schema):
    """The predicted memory of one rank."""

    rank: Few
    """Global rank. Ranks of equal work are predicted once."""
    batch: BatchShape
    """The micro-batch that needs most memory."""
    at_peak: Parts
    """The parts at the largest moment of a training step."""
    anatomy: Parts
    """Each part at its own largest."""
    training_bytes: Bytes
    """Tensors at the largest moment of a training step."""
    validation_bytes: Bytes
    """Tensors at the largest moment of a validation between two steps."""

    @property
    def peak_bytes(self) -> int:
        """Tensors at the largest moment of the run."""
        return max(self.training_bytes, self.validation_bytes)


class Prediction(Schema):
    """The memory that a run spec needs, found without running it."""

    variant: str
    """Name of the variant."""
    status: Literal["ok", "unsupported", "failed"]
    """Whether there is a prediction."""
    reason: str | None
    """Why there is none, in a sentence."""
    device: Literal["cpu", "cuda"] | None
    """Kind of device that it is for."""
    parameters: Many | None
    """Trainable parameters of the whole model."""
    ranks: list[PredictedRank]
    """Rank 0, and rank 1 where the others do other work."""
    context_bytes: SignedBytes | None
    """What a process takes on the device before it has a tensor, measured on this machine: the
    resident set on a CPU, NVML's number on a GPU; null where it could not be measured."""
    capacity_bytes: Bytes | None
    """Memory of a device, or the share of the host's that a process has; null if unknown."""
    notes: list[str]
    """What a reader must know of the prediction."""
    seconds: Elapsed
    """Time that the prediction took."""

    @property
    def peak_bytes(self) -> int | None:
        """Tensors at the largest moment of the heaviest rank; null without a prediction."""
        return max((rank.peak_bytes for rank in self.ranks), default=None)

    @property
    def process_bytes(self) -> int | None:
        """The same with the context; null where either is unknown."""
        if self.peak_bytes is None or self.context_bytes is None:
            return None
        return self.peak_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has that much; null where it is not known."""
        if self.process_bytes is None or self.capacity_bytes is None:
            return None
        return self.process_bytes <= self.capacity_bytes


class PredictedMemory(Schema):
    """results/memory/predicted.json."""

    predictions: list[Prediction]
    """The variants of the study, in its order."""
