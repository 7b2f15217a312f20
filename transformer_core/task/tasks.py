"""From the task of a run spec to what a training asks of it.

A batch holds what every task needs: target input and output, and of sentence pairs the source
(:class:`transformer_core.data.batching.collate.Batch`). The loop, the strategies and the
measurements hand it on; what the model makes of it, an objective knows.
"""

from torch import nn

from schemas.config.run_spec import RunSpec
from schemas.config.task import AnyTask, LanguageModel
from schemas.config.training import AnyLoss, WholeLoss
from transformer_core.task.objective import Objective
from transformer_core.task.text_objective import TextObjective

_WHOLE = WholeLoss()


def objective_of(spec: RunSpec, model: nn.Module) -> Objective:
    """``model`` and the training loss of ``spec`` as one module."""
    return objective(spec.task, model, spec.training.label_smoothing, spec.training.loss)


def objective(
    task: AnyTask, model: nn.Module, label_smoothing: float = 0.0, loss: AnyLoss = _WHOLE
) -> Objective:
    """``model`` and a loss of ``task`` as one module."""
    if isinstance(task, LanguageModel):
        return TextObjective(model, label_smoothing, loss, task.texts == "masked")
    return Objective(model, label_smoothing, loss)
