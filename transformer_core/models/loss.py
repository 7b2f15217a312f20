"""Label-smoothed cross-entropy, summed over tokens: from whole logits, in chunks, or in one pass.

One pass stores no logits and computes none twice, because the gradient of a cross-entropy, softmax
minus target, is known as soon as its value. The forward pass takes a chunk of tokens at a time,
small enough to stay in the cache of a CPU, and turns its logits into their gradient and then into
gradients of hidden states and output map; the backward pass only scales these. Liger Kernel (arXiv
2410.10989, 3.2) and Cut Cross-Entropy (arXiv 2411.09009) use the same idea.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from transformer_core.common.progress import log
from transformer_core.data.tokenizing.special_tokens import PAD
from transformer_core.models.device_kind import device_kind
from transformer_core.models.dropout import fits
from transformer_core.models.unpadded import places


def token_loss_sum(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum over the non-padding tokens of the cross-entropy in nats, a float32 scalar.

    logits [b, t, v] of any floating type, labels [b, t]; labels that are PAD do not count.
    ``smoothing`` spreads that share of the label's probability evenly over the vocabulary (arXiv
    1512.00567, 7), exactly as ``F.cross_entropy(label_smoothing=...)`` does; 0 gives the plain
    cross-entropy, as used for validation.

    The Annotated Transformer spreads the share over the v - 2 tokens other than label and PAD, and
    takes the Kullback-Leibler divergence, which is smaller by the entropy of the smoothed target: a
    constant without gradient. With thousands of tokens the two targets hardly differ.

    Unlike ``F.cross_entropy`` this stores one number per token for the backward pass, not the
    log-probabilities, which it computes again from the logits, slice by slice.
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

    hidden [b, t, d], output [v, d], labels [b, t]. The logits of a chunk are freed after its loss,
    and the backward pass computes them again, so the logits of all tokens never exist together.
    Without ``rows``, the device determines their number. Gradients of ``output`` add up over the
    chunks in its own format, even under autocast.
    """
    device = hidden.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else output.dtype
    if rows is None:
        many = max(1, _CHUNK_ELEMENTS // len(output))
        rows = _CPU_ROWS if device_kind(hidden) == "cpu" else many

    def loss_of(chunk: Tensor, chunk_labels: Tensor) -> Tensor:
        # Convert for each chunk: autocast would share one copy, whose gradient has 16 bits.
        return token_loss_sum(F.linear(chunk, output.to(half)), chunk_labels, smoothing)

    chunks = zip(hidden.flatten(0, 1).split(rows), labels.flatten().split(rows), strict=True)
    losses = [
        checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks
    ]
    return torch.stack(losses).sum()


_CPU_ROWS, _CHUNK_ELEMENTS = 256, 2**26
"""Tokens in a chunk on a CPU, and logits in one on a GPU: 256 MiB in 32 bits."""


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
    """Number of rows of [n, v] to process at a time.

    On a CPU, few enough that the float32 temporaries stay in the cache and the allocator reuses
    their memory; on a GPU, so many that kernel launches cost nothing.
    """
    elements = 2**18 if device_kind(logits) == "cpu" else 2**26
    return max(1, elements // logits.size(-1))


def kl_divergence_sum(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over the non-padding tokens of the smoothed cross-entropy in nats, a float32 scalar.

    logits [b, t, v] with v > 2, labels [b, t]. Log-probabilities and smoothed targets [b * t, v]
    exist in full; the targets give 1 - smoothing to the label and share the rest among the v - 2
    tokens other than label and padding. Their Kullback-Leibler divergence is the cross-entropy minus
    the entropy of the targets, a constant, which we add.
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


_CPU_ELEMENTS, _LOOP_ELEMENTS, _ELEMENTS = 2**20, 2**24, 2**28
"""Number of logits in a chunk. On a CPU 4 MiB, which fit into a last-level cache; but 32 MiB for the
loop, which keeps only a row in the cache, so that adding up gradients of the output map dominates.
On a GPU enough to make kernels large."""
_LIFT = 1024.0  # keeps small probabilities in the range of float16
_SUMMED = 2**13
"""Most rows of a chunk in float16: the gradients of a frequent token add up over all of them, and the
largest number is 65,504."""


def one_pass_loss_sum(hidden: Tensor, output: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """:func:`token_loss_sum` of the logits ``hidden @ output.T``, a float32 scalar in nats.

    hidden [b, t, d], output [v, d], labels [b, t]; smoothing in 0 ... 1. On a CPU it skips the
    logits of padding. Under autocast, products are in its format and sums in 32 bits.
    """
    device = hidden.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    flat, label = hidden.flatten(0, 1), labels.flatten()
    if device_kind(hidden) == "cpu":  # on a GPU, the host would have to wait to know how many
        kept = places(labels)
        flat, label = flat[kept], label[kept]
    return _OnePass.apply(flat, output, label, smoothing, half)


class _OnePass(torch.autograd.Function):
    """hidden [n, d], output [v, d], labels [n] -> sum."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        output: Tensor,
        labels: Tensor,
        smoothing: float,
        half: torch.dtype | None,
    ) -> Tensor:
        device = hidden.device.type
        with torch.autocast(device, enabled=False):
            h = hidden if half is None else hidden.to(half)
            w = output if half is None else output.to(half)
            wants_hidden, wants_output = ctx.needs_input_grad[:2]
            counted = labels != PAD
            losses = hidden.new_empty(len(h), dtype=torch.float32)
            d_hidden = torch.empty_like(hidden) if wants_hidden else None
            # In 32 bits, because the chunks add up.
            wide = torch.float32 if output.element_size() < 4 else None
            d_output = torch.zeros_like(output, dtype=wide) if wants_output else None
            padded = device_kind(hidden) != "cpu"
            limit = _ELEMENTS if padded else _CPU_ELEMENTS
            turn: Callable[..., tuple[Tensor, Tensor]] = _loss_and_gradient
            lift = _LIFT if w.dtype == torch.float16 else 1.0
            if torch.compiler.is_compiling():
                pass
            elif device_kind(hidden) == "cuda" and not watched() and not _why_no_kernel(h.device):
                turn = _in_one_kernel
            elif w.dtype == torch.bfloat16 and fits(w):
                turn, limit = _in_one_loop, _LOOP_ELEMENTS
            rows = max(1, limit // len(w))
            if w.dtype == torch.float16:
                rows = min(rows, _SUMMED)
            for start in range(0, len(h), rows):
                part = slice(start, start + rows)
                logits = h[part] @ w.T
                losses[part], d_logits = turn(
                    logits, labels[part], counted[part] if padded else None, smoothing, lift
                )
                _products(h[part], w, d_logits, part, d_hidden, d_output, lift)
            # The evenly spread share of the target only needs the mean of the logits: the hidden
            # state times the mean row of the output map.
            if smoothing:
                weight, wide_h = counted.float(), h.float()
                mean = w.float().mean(0)
                losses -= smoothing * (wide_h @ mean)
                if d_hidden is not None:
                    d_hidden -= smoothing * weight[:, None] * mean
                if d_output is not None:
                    d_output -= smoothing / len(w) * (weight @ wide_h)
            ctx.save_for_backward(d_hidden, d_output)
            ctx.format = output.dtype
            return torch.where(counted, losses, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        d_hidden, d_output = ctx.saved_tensors
        return (
            None if d_hidden is None else d_hidden.mul_(grad),
            None if d_output is None else d_output.mul_(grad).to(ctx.format),
            None,
            None,
            None,
        )


def _loss_and_gradient(
    logits: Tensor, labels: Tensor, counted: Tensor | None, smoothing: float, lift: float
) -> tuple[Tensor, Tensor]:
    """Loss [n] of logits [n, v] and ``lift`` times its gradient [n, v], both without the evenly
    spread share.

    The gradient is 0 in rows that are not ``counted``; None counts all.
    """
    wide = logits.float()
    highest = wide.amax(-1)
    chosen = wide.gather(-1, labels[:, None]).squeeze(-1)
    probabilities = wide.softmax(-1)
    # The most probable token has a probability of at least 1 / v, whose logarithm is finite.
    log_total = highest - probabilities.amax(-1).log_()
    loss = log_total - (1 - smoothing) * chosen
    probabilities.scatter_add_(
        -1, labels[:, None], probabilities.new_full((len(labels), 1), smoothing - 1)
    )
    if counted is not None:
        probabilities *= counted[:, None]
    return loss, probabilities if lift == 1.0 else probabilities * lift


def _in_one_loop(
    logits: Tensor, labels: Tensor, _: Tensor | None, smoothing: float, lift: float
) -> tuple[Tensor, Tensor]:
    """The same by a compiled loop for a CPU, where we skip padding."""
    # Imported late, because the compiler takes half a second in every process.
    from transformer_core.models.compiled_loops import loss_and_gradient

    return loss_and_gradient(logits, labels, smoothing)


@cache
def _why_no_kernel(device: torch.device) -> str | None:
    """The reason why Triton cannot build a kernel for ``device`` here; None if it can. It needs a C
    compiler and Python's headers, which some hosts lack."""
    try:
        from transformer_core.techniques import gpu_kernels  # here, since some hosts lack Triton

        one = torch.zeros(1, 2, device=device)
        gpu_kernels.loss_and_gradient(one, one[0, :1].long(), None, 0.0, 1.0)
    except Exception as error:  # from Triton, its compiler, or the system
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        log.warning("computing the loss step by step, without Triton's kernel: %s", reason)
        return reason
    return None


def _in_one_kernel(
    logits: Tensor, labels: Tensor, counted: Tensor | None, smoothing: float, lift: float
) -> tuple[Tensor, Tensor]:
    """:func:`_loss_and_gradient` by a Triton kernel, which reads the logits twice and writes them
    once, in their own format, in place of some ten operations that each do so."""
    from transformer_core.techniques import gpu_kernels

    return gpu_kernels.loss_and_gradient(logits, labels, counted, smoothing, lift)


def watched() -> bool:
    """Whether a torch mode, such as that of fake tensors, observes every operation of this thread.
    Compiled code hides operations, and torch refuses to compile unless the mode allows it."""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    return any(
        isinstance(mode, FakeTensorMode) or not getattr(mode, "ignore_compile_internals", bool)()
        for mode in modes
    )


def _products(
    hidden: Tensor,
    output: Tensor,
    d_logits: Tensor,
    part: slice,
    d_hidden: Tensor | None,
    d_output: Tensor | None,
    lift: float,
) -> None:
    """Writes the gradient of the hidden rows ``part``, and adds to that of the output map; the
    gradient of the logits is ``lift`` times too large."""
    g = d_logits.to(output.dtype)
    if d_hidden is not None:
        d_hidden[part] = (g @ output).to(d_hidden.dtype) / lift if lift != 1.0 else g @ output
    if d_output is not None:
        if g.dtype == d_output.dtype:
            d_output.addmm_(g.T, hidden)
        elif lift == 1.0:
            d_output += g.T @ hidden
        else:
            # Without the lift, since the result has 16 bits, too.
            d_output += (g.T @ (hidden / lift)).to(d_output.dtype)
