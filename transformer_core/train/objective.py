"""Model and loss as one module, so that a wrapped model computes its loss where its logits are."""

import torch
from torch import nn

from transformer_core.model.loss import token_loss_sum


class Objective(nn.Module):
    """The training loss of a model, summed over the target tokens of a micro-batch."""

    def __init__(self, model: nn.Module, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(
        self, source: torch.Tensor, target_input: torch.Tensor, target_output: torch.Tensor
    ) -> torch.Tensor:
        """Loss sum in nats, a scalar, from source [b, s] and target input and output [b, t]."""
        return self.loss(self.model(source, target_input), target_output)

    def loss(self, logits: torch.Tensor, target_output: torch.Tensor) -> torch.Tensor:
        """Loss sum in nats, a scalar, of logits [b, t, v]."""
        return token_loss_sum(logits, target_output, self.label_smoothing)
