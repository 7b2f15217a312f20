"""What the job of an evaluation asks of its worker."""

from pathlib import Path

from transformer_core.run.order import TrainingOrder

RESULT = "evaluation.json"


class EvaluationOrder(TrainingOrder):
    """To translate the test split with a trained model."""

    kind = "evaluation"
    work = "transformer_core.measure.evaluation.worker"

    weights: Path
    """model.safetensors of the run."""

    @property
    def title(self) -> str:
        return f"{self.spec.variant}, evaluation"
