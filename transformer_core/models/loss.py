"""Label-smoothed cross-entropy, summed over tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.device_kind import device_kind


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
    number per token: they are worked out again from the logits, slice by slice.
    """
    v = logits.size(-1)
    return _TokenLossSum.apply(logits.reshape(-1, v), labels.reshape(-1), smoothing)


def whole_head_loss(hidden: Tensor, output: Tensor, labels: Tensor) -> Tensor:
    """:func:`token_loss_sum` of the logits ``hidden @ output.T``, all at once."""
    return token_loss_sum(F.linear(hidden, output), labels)


def chunked_token_loss_sum(
    hidden: Tensor, output: Tensor, labels: Tensor, smoothing: float, rows: int | None = None
) -> Tensor:
    """:func:`token_loss_sum` of the logits ``hidden @ output.T``, ``rows`` target tokens at a time.

    hidden [b, t, d], output [v, d], labels [b, t]. The logits of a chunk are let go after its loss
    and computed once more in the backward pass, so that those of all tokens never exist together.
    Without ``rows``, as many as the device can make good use of. Gradients of ``output`` are summed
    up over the chunks in its own format, also under autocast.
    """
    device = hidden.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else output.dtype
    if rows is None:
        many = max(1, _CHUNK_ELEMENTS // len(output))
        rows = _CPU_ROWS if device_kind(hidden) == "cpu" else many

    def loss_of(chunk: Tensor, chunk_labels: Tensor) -> Tensor:
        # A copy for each chunk: autocast would share one, whose gradient has 16 bits.
        return token_loss_sum(F.linear(chunk, output.to(half)), chunk_labels, smoothing)

    chunks = zip(hidden.flatten(0, 1).split(rows), labels.flatten().split(rows), strict=True)
    losses = [
        checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks
    ]
    return torch.stack(losses).sum()


_CPU_ROWS, _CHUNK_ELEMENTS = 256, 2**26
"""Tokens of a chunk on a CPU, and logits of one on a GPU: 256 MiB in 32 bits."""


class _TokenLossSum(torch.autograd.Function):
    """logits [n, v], labels [n] -> sum."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        rows = _rows_per_slice(logits)
        losses, log_totals = [], []
        for x, label in zip(logits.split(rows), labels.split(rows), strict=True):
            wide = x.float()
            log_total = wide.logsumexp(dim=-1)
            loss = log_total - (1 - smoothing) * wide.gather(-1, label[:, None]).squeeze(-1)
            if smoothing:
                loss -= smoothing * wide.mean(dim=-1)
            losses.append(loss)
            log_totals.append(log_total)
        ctx.save_for_backward(logits, labels, torch.cat(log_totals))
        ctx.smoothing = smoothing
        return torch.cat(losses).masked_fill(labels == PAD, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, log_total = ctx.saved_tensors
        factor = torch.where(labels == PAD, 0.0, grad)
        result = torch.empty_like(logits)
        slices = (
            tensor.split(_rows_per_slice(logits))
            for tensor in (result, logits, labels, log_total, factor)
        )
        # d loss / d logits = softmax - (1 - smoothing) * onehot(label) - smoothing / v
        for out, x, label, total, scale in zip(*slices, strict=True):
            wide = (x.float() - total[:, None]).exp_()
            if ctx.smoothing:
                wide -= ctx.smoothing / logits.size(-1)
            wide.scatter_add_(-1, label[:, None], wide.new_full((len(x), 1), ctx.smoothing - 1))
            out.copy_(wide.mul_(scale[:, None]))
        return result, None, None


def _rows_per_slice(logits: Tensor) -> int:
    """Rows of [n, v] that are worked on at a time.

    On a CPU, so few that the float32 temporaries stay in the cache and the allocator hands out the
    same memory each time; on a GPU, so many that starting kernels costs nothing.
    """
    elements = 2**18 if device_kind(logits) == "cpu" else 2**26
    return max(1, elements // logits.size(-1))
