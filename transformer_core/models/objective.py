"""Joins model and loss in one module, so that a wrapped model computes its loss next to its logits."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from schemas.config.run_spec import AnyTask, LanguageModel, RunSpec
from schemas.config.training import AnyLoss, WholeLoss
from transformer_core.data.batching.collate import NOTHING, Known
from transformer_core.data.tokenizing.special_tokens import BOS, PAD
from transformer_core.models.device_kind import device_kind
from transformer_core.models.interface import HeadLoss
from transformer_core.models.loss import (
    chunked_token_loss_sum,
    kl_divergence_sum,
    one_pass_loss_sum,
    token_loss_sum,
)

_WHOLE = WholeLoss()

LOGITS_LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "whole": token_loss_sum,
    "kl_divergence": kl_divergence_sum,
}
"""(logits [b, t, v], labels [b, t], smoothing) -> sum, by the ``kind`` of its schema."""

HEAD_LOSSES: dict[str, Callable[[Any, Tensor, Tensor, Tensor, float], Tensor]] = {
    "chunked": lambda spec, h, w, y, share: chunked_token_loss_sum(h, w, y, share, spec.rows),
    "one_pass": lambda _, h, w, y, share: one_pass_loss_sum(h, w, y, share),
}
"""(schema, hidden [b, t, d], output map [v, d], labels [b, t], smoothing) -> sum, by the ``kind``
of the schema, for losses that never hold all logits."""


class Objective(nn.Module):
    """The training loss of a model, summed over the target tokens of a micro-batch."""

    def __init__(self, model: nn.Module, label_smoothing: float, loss: AnyLoss = _WHOLE) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.spec = loss

    def forward(
        self, source: Tensor, target_input: Tensor, target_output: Tensor, known: Known = NOTHING
    ) -> Tensor:
        """Loss sum in nats, a scalar, from source [b, s], target input and output [b, t], and the
        facts that the host knows about them."""
        of_head = self.head_loss()
        if of_head is None:
            # Some models of other libraries need more than hidden states for their logits.
            return self.loss(self.logits(source, target_input, known), target_output)
        # The model calls it in its forward, where FSDP gathers a sharded output map.
        return self._of_hidden(of_head, source, target_input, target_output, known)

    def _of_hidden(
        self, of_head: HeadLoss, source: Tensor, inputs: Tensor, outputs: Tensor, known: Known
    ) -> Tensor:
        def head(hidden: Tensor, output: Tensor) -> Tensor:
            return of_head(hidden, output, outputs)

        return self.model(source, inputs, head, **self._known(source, known))

    def head_loss(self) -> HeadLoss | None:
        """The loss of hidden states, which the schema may implement; None for a loss of logits."""
        spec, share = self.spec, self.label_smoothing
        if hasattr(spec, "loss_sum"):
            return lambda h, w, y: spec.loss_sum(h, w, y, share, PAD)
        of_head = HEAD_LOSSES.get(spec.kind)
        if of_head is None:
            return None
        return lambda h, w, y: of_head(spec, h, w, y, share)

    def logits(self, source: Tensor, target_input: Tensor, known: Known = NOTHING) -> Tensor:
        return self.model(source, target_input, **self._known(source, known))

    def _known(self, source: Tensor, known: Known) -> dict[str, Any]:
        """The facts, if the model can use them: on a GPU, a mask rules out the fastest kernel, and
        the host would have to wait for lengths."""
        useful = hasattr(self.model, "needs_mask") and device_kind(source) == "cuda"
        return {"known": known} if useful else {}

    def loss(self, logits: Tensor, target_output: Tensor) -> Tensor:
        """Loss sum in nats, a scalar, of logits [b, t, v]."""
        of_logits = LOGITS_LOSSES.get(self.spec.kind, token_loss_sum)
        return of_logits(logits, target_output, self.label_smoothing)


class TextObjective(Objective):
    """The training loss of a language model, summed over the tokens of a micro-batch.

    Its batches have an empty source [b, 0]. With ``masked`` attention stays within a text.
    """

    def __init__(
        self, model: nn.Module, label_smoothing: float, loss: AnyLoss, masked: bool
    ) -> None:
        super().__init__(model, label_smoothing, loss)
        self.masked = masked

    def _of_hidden(
        self, of_head: HeadLoss, source: Tensor, inputs: Tensor, outputs: Tensor, known: Known
    ) -> Tensor:
        segments = text_segments(inputs) if self.masked else None
        return self.model(inputs, outputs, segments, of_head, **self._lengths(known))

    def logits(self, source: Tensor, target_input: Tensor, known: Known = NOTHING) -> Tensor:
        segments = text_segments(target_input) if self.masked else None
        return self.model(target_input, None, segments, **self._lengths(known))

    def _lengths(self, known: Known) -> dict[str, Any]:
        """Token counts of the documents, for a model that takes them without padding."""
        if known.lengths is None or not getattr(self.model, "blocks", 0):
            return {}
        return {"lengths": known.lengths[self.masked]}


def text_segments(target_input: Tensor) -> Tensor:
    """target_input [b, t] -> [b, t] number of each token's text, from 1; padding gets that of the
    last text."""
    return (target_input == BOS).cumsum(1)


def objective_of(spec: RunSpec, model: nn.Module) -> Objective:
    return objective(spec.task, model, spec.training.label_smoothing, spec.training.loss)


def objective(
    task: AnyTask, model: nn.Module, label_smoothing: float = 0.0, loss: AnyLoss = _WHOLE
) -> Objective:
    """Joins ``model`` and the loss of ``task`` in one module."""
    if isinstance(task, LanguageModel):
        return TextObjective(model, label_smoothing, loss, task.texts == "masked")
    return Objective(model, label_smoothing, loss)
