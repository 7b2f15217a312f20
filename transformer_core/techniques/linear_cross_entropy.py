"""Output map and cross-entropy in one function of torch, which takes the logits in chunks."""

from typing import TYPE_CHECKING, ClassVar, Literal

from schemas.base import Schema
from schemas.config.facts import LossFacts
from schemas.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor


class LinearCrossEntropy(LossFacts, Schema):
    """Output map and loss by torch's linear_cross_entropy (torch 2.13 and newer): it takes the
    logits in chunks whose size it chooses itself, and keeps their gradients instead of them. In 32
    bits only, since it rounds the sum of the losses to the format of the logits."""

    kind: Literal["linear_cross_entropy"]

    of_hidden: ClassVar = True
    only_32_bits: ClassVar = "rounds the sum of the losses to the format of the logits"

    def loss_sum(
        self, hidden: "Tensor", output: "Tensor", labels: "Tensor", smoothing: float, padding: int
    ) -> "Tensor":
        """Label-smoothed cross-entropy of ``hidden @ output.T``, in nats, summed over the labels
        that are not ``padding``: a scalar.

        hidden [b, t, d], output [v, d], labels [b, t]; ``smoothing`` spreads that share of the
        target evenly over all v tokens. Raises Unsupported if torch is too old.
        """
        import torch.nn.functional as F

        if not hasattr(F, "linear_cross_entropy"):
            raise Unsupported(
                "training.loss: linear_cross_entropy needs torch 2.13 or newer: use one_pass"
            )
        from torch.nn import LinearCrossEntropyOptions

        h, y = hidden.flatten(0, 1), labels.flatten()
        loss = F.linear_cross_entropy(
            h, output, y, reduction="sum", ignore_index=padding, options=LinearCrossEntropyOptions()
        )
        return loss + smoothing_term(h, output, y, smoothing, padding)


def smoothing_term(
    hidden: "Tensor", output: "Tensor", labels: "Tensor", smoothing: float, padding: int
) -> "Tensor | float":
    """Term to add to a cross-entropy without label smoothing: smoothing * (logit of the label - mean
    of all logits), two scalar products with the hidden state.

    hidden [n, d], output [v, d], labels [n] -> a scalar, summed over labels that are not
    ``padding``."""
    import torch.nn.functional as F

    if not smoothing:
        return 0.0
    apart = F.embedding(labels, output) - output.mean(0)
    terms = (hidden * apart).sum(-1).masked_fill(labels == padding, 0.0)
    return smoothing * terms.sum()
