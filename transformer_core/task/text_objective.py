"""The training loss of a language model."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from schemas.config.training import AnyLoss
from transformer_core.data.tokenizing.special_tokens import BOS
from transformer_core.task.objective import HEAD_LOSSES, Objective


class TextObjective(Objective):
    """The training loss of a language model, summed over the tokens of a micro-batch.

    Its batches have no source: that of [b, 0] stands in its place. With ``masked`` attention keeps
    within a text.
    """

    def __init__(
        self, model: nn.Module, label_smoothing: float, loss: AnyLoss, masked: bool
    ) -> None:
        super().__init__(model, label_smoothing, loss)
        self.masked = masked

    def forward(
        self,
        source: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        source_full: bool = False,
    ) -> Tensor:
        """Loss sum in nats, a scalar, of target_output [b, t] after target_input [b, t]."""
        of_head = HEAD_LOSSES.get(self.spec.kind)
        if of_head is None:
            # Some models of other libraries make their logits of more than hidden states.
            return self.loss(self.logits(source, target_input), target_output)
        loss = partial(self._of_head, of_head)
        segments = text_segments(target_input) if self.masked else None
        # Inside the model's forward, where a sharded output map is gathered.
        loss_sum: Tensor = self.model(target_input, target_output, segments, loss)
        return loss_sum

    def logits(self, source: Tensor, target_input: Tensor, source_full: bool = False) -> Tensor:
        """Logits [b, t, v] of the next tokens."""
        segments = text_segments(target_input) if self.masked else None
        logits: Tensor = self.model(target_input, None, segments)
        return logits

    def _of_head(
        self, of_head: Callable[..., Tensor], hidden: Tensor, output: Tensor, labels: Tensor
    ) -> Tensor:
        return of_head(self.spec, hidden, output, labels, self.label_smoothing)


def text_segments(target_input: Tensor) -> Tensor:
    """target_input [b, t] -> [b, t] number of the text that each token belongs to, from 1; padding
    has that of the last text."""
    return (target_input == BOS).cumsum(1)
