"""Model and loss as one module, so that a wrapped model computes its loss where its logits are."""

import torch
from torch import nn

from schemas.train import AnyLoss, ChunkedLoss, WholeLoss
from transformer_core.model.loss import chunked_token_loss_sum, token_loss_sum

_WHOLE = WholeLoss()


class Objective(nn.Module):
    """The training loss of a model, summed over the target tokens of a micro-batch."""

    def __init__(self, model: nn.Module, label_smoothing: float, loss: AnyLoss = _WHOLE) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.chunk_rows = loss.rows if isinstance(loss, ChunkedLoss) else None

    def forward(
        self, source: torch.Tensor, target_input: torch.Tensor, target_output: torch.Tensor
    ) -> torch.Tensor:
        """Loss sum in nats, a scalar, from source [b, s] and target input and output [b, t]."""
        if self.chunk_rows is None:
            return self.loss(self.model(source, target_input), target_output)
        rows = self.chunk_rows

        def head(hidden: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
            return chunked_token_loss_sum(hidden, output, target_output, self.label_smoothing, rows)

        # Inside the model's forward, where a sharded output map is gathered.
        loss_sum: torch.Tensor = self.model(source, target_input, head)
        return loss_sum

    def loss(self, logits: torch.Tensor, target_output: torch.Tensor) -> torch.Tensor:
        """Loss sum in nats, a scalar, of logits [b, t, v]."""
        return token_loss_sum(logits, target_output, self.label_smoothing)
