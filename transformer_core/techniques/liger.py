"""Kernels of the library Liger (arXiv 2410.10989) for GPUs."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schemas.base import Schema
from schemas.config.facts import LossFacts
from transformer_core.techniques import imported, require_gpu

if TYPE_CHECKING:
    from torch import Tensor

Kernels = Literal["torch", "liger"]  # kernels of normalization, SwiGLU and rotary positions


class LigerLoss(LossFacts, Schema):
    """Output map and loss by Liger's fused kernel for GPUs, which takes the logits in chunks and
    overwrites them with their gradient, as one_pass does."""

    kind: Literal["liger"]

    of_hidden: ClassVar = True

    def loss_sum(
        self, hidden: "Tensor", output: "Tensor", labels: "Tensor", smoothing: float, padding: int
    ) -> "Tensor":
        """Label-smoothed cross-entropy of ``hidden @ output.T``, in nats, summed over the labels
        that are not ``padding``: a scalar. hidden [b, t, d], output [v, d], labels [b, t]."""
        import torch

        function = library("training.loss: liger", hidden).liger_fused_linear_cross_entropy
        loss = function(
            hidden.flatten(0, 1),
            output,
            labels.flatten(),
            ignore_index=padding,
            label_smoothing=smoothing,
            reduction="sum",
            accum_dtype=torch.float32,
        )
        return loss.float()


def rms_norm(x: "Tensor", weight: "Tensor", eps: float) -> "Tensor":
    """x [..., d] over its root mean square, times ``weight`` [d], in the format of x."""
    # Not in place, because the other branch of the residual stream needs its gradient, too.
    kernel = library("model.kernels: liger", x).liger_rms_norm
    return kernel(x, weight.to(x.dtype), eps, in_place=False)


def swiglu(x: "Tensor") -> "Tensor":
    """x [..., 2 f], gate and value -> [..., f]."""
    gate, value = x.chunk(2, dim=-1)
    return library("model.kernels: liger", x).liger_swiglu(gate, value)


def rotated(
    q: "Tensor", k: "Tensor", turn: "tuple[Tensor, Tensor]", kept: bool = False
) -> "tuple[Tensor, Tensor]":
    """Rotates q and k [b, h, n, k] by cosines and sines [b or 1, 1, n, k / 2]. If they are ``kept`` for a
    second computation, it rotates copies: the kernel writes over queries and keys that lie token by
    token in memory, without a word to autograd."""
    import torch

    if kept:
        q, k = q.clone(), k.clone()
    cos, sin = (torch.cat([part, part], -1).squeeze(1).to(q.dtype) for part in turn)
    return library("model.kernels: liger", q).liger_rope(q, k, cos, sin)


def library(field: str, x: "Tensor") -> Any:
    """Liger's functions. Unsupported if ``x`` is not on a GPU, or the library is missing."""
    require_gpu(field, x)
    module = "liger_kernel.transformers.functional"
    return imported(module, f"{field} needs the library Liger", "liger-kernel")
