"""Label-smoothed cross-entropy, summed over tokens."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_core.data.vocabulary import PAD


def token_loss_sum(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum over the non-padding tokens of the cross-entropy in nats, a float32 scalar.

    logits [b, t, v] of any floating type, labels [b, t]; labels that are PAD count nothing.
    ``smoothing`` moves that share of the probability from the label to the whole vocabulary evenly
    (arXiv 1512.00567, 7), exactly as ``F.cross_entropy(label_smoothing=...)`` does; 0 gives the
    plain cross-entropy, as used for validation.

    The Annotated Transformer spreads the share over the v - 2 tokens other than label and PAD, and
    takes the Kullback-Leibler divergence, which is smaller by the entropy of the smoothed target: a
    constant without gradient. With thousands of tokens the two targets hardly differ.

    Unlike ``F.cross_entropy`` this keeps no log-probabilities for the backward pass, only one
    number per token: they are worked out again from the logits, which saves time and memory.
    """
    v = logits.size(-1)
    return _TokenLossSum.apply(logits.reshape(-1, v), labels.reshape(-1), smoothing)


class _TokenLossSum(torch.autograd.Function):
    """logits [n, v], labels [n] -> sum."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        wide = logits.float()
        log_total = wide.logsumexp(dim=-1)
        label_logit = wide.gather(-1, labels[:, None]).squeeze(-1)
        loss = log_total - (1 - smoothing) * label_logit
        if smoothing:
            loss = loss - smoothing * wide.mean(dim=-1)
        ctx.save_for_backward(logits, labels, log_total)
        ctx.smoothing = smoothing
        return loss.masked_fill(labels == PAD, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, log_total = ctx.saved_tensors
        # d loss / d logits = softmax - (1 - smoothing) * onehot(label) - smoothing / v
        result = (logits.float() - log_total[:, None]).exp_()
        if ctx.smoothing:
            result -= ctx.smoothing / logits.size(-1)
        result.scatter_add_(
            -1, labels[:, None], result.new_full((len(labels), 1), ctx.smoothing - 1)
        )
        result *= torch.where(labels == PAD, 0.0, grad)[:, None]
        return result.to(logits.dtype), None, None
