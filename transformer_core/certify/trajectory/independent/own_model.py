"""Loss and gradients of a model that only its own code can compute: another library's, a user's."""

import contextlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from schemas.config.run_spec import AnyTrained
from schemas.config.task import AnyTask, Translation
from transformer_core.certify.trajectory.canonical_tensors import trained_names
from transformer_core.certify.trajectory.independent.number_formats import Format
from transformer_core.certify.trajectory.independent.plain_model import (
    PADDING,
    Tokens,
    Weights,
    smoothed_loss,
)
from transformer_core.models.canonical_weights import canonical_state_dict
from transformer_core.models.objective import objective
from transformer_core.models.registry import build_model

_TRANSLATION = Translation()


class OwnModel:
    """The counterpart of :class:`PlainModel` for any model: built anew, in one process, without
    dropout. What it computes is checked by nobody; only how a variant computes it is."""

    def __init__(
        self,
        spec: AnyTrained,
        vocabulary: int,
        label_smoothing: float,
        task: AnyTask = _TRANSLATION,
    ) -> None:
        self.smoothing = label_smoothing
        self.nearest = math.inf  # nobody knows where its kinks are
        with torch.random.fork_rng(devices=[]):
            self.model = build_model(spec.model_copy(update={"dropout": 0.0}), vocabulary)
        self.logits = objective(task, self.model).logits
        self.trained = trained_names(self.model)

    def loss_and_gradients(
        self, weights: Weights, batches: Iterable[Tokens], number_format: Format
    ) -> tuple[float, dict[str, Tensor]]:
        """Loss per target token in nats over ``batches``, and its gradient by name, in 64 bit."""
        batches = list(batches)
        device = batches[0][0].device
        model = self.model.to(device, number_format.base).train()
        with torch.no_grad():
            for name, tensor in canonical_state_dict(model).items():
                tensor.copy_(number_format.weight(weights[name].to(number_format.base)))
        model.zero_grad()
        count = sum(int((labels != PADDING).sum()) for _, _, labels in batches)
        total = 0.0
        for source, target, labels in batches:
            with self._autocast(device, number_format):
                logits = self.logits(source, target)
            loss = smoothed_loss(logits.to(number_format.base), labels, self.smoothing)
            (loss / count).backward()
            total += float(loss.detach())
        # Under their canonical names, which only the model itself can tell: in the weights' place.
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        gradients = {
            name: tensor.to(torch.float64, copy=True)
            for name, tensor in canonical_state_dict(model).items()
            if name in self.trained
        }
        return total / count, gradients

    @staticmethod
    def _autocast(device: torch.device, form: Format) -> contextlib.AbstractContextManager[object]:
        if form.rounding is None:
            return contextlib.nullcontext()
        # One element is enough to tell which format it is rounded to.
        third = form.rounding(torch.tensor([1 / 3]))
        dtype = torch.bfloat16 if third == torch.tensor([1 / 3]).bfloat16() else torch.float16
        return torch.autocast(device.type, dtype=dtype)
