"""The loss of the Annotated Transformer: every intermediate result written out."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_core.data.tokenizing.special_tokens import PAD


def kl_divergence_sum(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over the non-padding tokens of the smoothed cross-entropy in nats, a float32 scalar.

    logits [b, t, v] with v > 2, labels [b, t]. Log-probabilities and smoothed targets [b * t, v]
    exist in full; the targets give 1 - smoothing to the label and share the rest among the v - 2
    tokens other than label and padding. Their Kullback-Leibler divergence is the cross-entropy less
    the entropy of the targets, which is added, being a constant.
    """
    v = logits.size(-1)
    label = labels.reshape(-1)
    log_probabilities = logits.reshape(-1, v).float().log_softmax(dim=-1)
    with torch.no_grad():
        targets = torch.full_like(log_probabilities, smoothing / (v - 2))
        targets.scatter_(1, label[:, None], 1.0 - smoothing)
        targets[:, PAD] = 0.0
        targets = targets.masked_fill((label == PAD)[:, None], 0.0)
        entropy = -(1 - smoothing) * math.log(1 - smoothing)
        if smoothing:
            entropy -= smoothing * math.log(smoothing / (v - 2))
        constant = entropy * (label != PAD).sum()
    divergence = F.kl_div(log_probabilities, targets, reduction="sum")
    return divergence + constant
