"""Output map and cross-entropy by the library cut-cross-entropy (arXiv 2411.09009) for GPUs."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schemas.base import Schema
from schemas.config.facts import LossFacts
from transformer_core.techniques import imported, require_gpu
from transformer_core.techniques.linear_cross_entropy import smoothing_term

if TYPE_CHECKING:
    from torch import Tensor


class CutCrossEntropy(LossFacts, Schema):
    """Output map and loss by the kernel of the library cut-cross-entropy for GPUs: it computes
    logits block by block, keeps none, and skips blocks whose gradient the number format would not
    show. Made for 16 bits: in 32, its products may have the precision of TensorFloat-32."""

    kind: Literal["cut_cross_entropy"]

    of_hidden: ClassVar = True

    def loss_sum(
        self, hidden: "Tensor", output: "Tensor", labels: "Tensor", smoothing: float, padding: int
    ) -> "Tensor":
        """Label-smoothed cross-entropy of ``hidden @ output.T``, in nats, summed over the labels
        that are not ``padding``: a scalar. hidden [b, t, d], output [v, d], labels [b, t].

        Raises Unsupported if the device is not a GPU, or the library is missing."""
        import torch

        function = library(hidden)
        device = hidden.device.type
        # The kernel ignores autocast.
        if torch.is_autocast_enabled(device):
            hidden = hidden.to(torch.get_autocast_dtype(device))
        h, y = hidden.flatten(0, 1), labels.flatten()
        loss = function(h, output.to(h.dtype), y, ignore_index=padding, reduction="sum")
        return loss.float() + smoothing_term(h, output, y, smoothing, padding)


def library(x: "Tensor") -> Any:
    """The library's function. Unsupported if ``x`` is not on a GPU, or the library is missing."""
    field = "training.loss: cut_cross_entropy"
    require_gpu(field, x)
    found = imported("cut_cross_entropy", f"{field} needs its library", "cut-cross-entropy")
    return found.linear_cross_entropy
