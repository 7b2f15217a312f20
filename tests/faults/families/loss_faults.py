"""Loss, tied weights, and micro-batches that are added up."""

import itertools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tests.faults.families.fault import BF16, TWO, UNTIED, Fault
from tests.faults.families.planting import keep, swap, swap_item
from transformer_core.model import loss as loss_module
from transformer_core.model.transformer import EncoderDecoder
from transformer_core.train import objective
from transformer_core.train.precision import autocast


def smoothed_by(factor: float) -> Callable[[Any], Any]:
    return lambda real: lambda x, y, s=0.0: real(x, y, s * factor)


def padding_counts(real: Any) -> Any:
    def loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing, reduction="sum"
        )

    return loss


def last_chunk_forgotten(real: Any) -> Any:
    """Chunks shorter than the others have no loss."""

    def run(of: Any, hidden: Tensor, labels: Tensor, **named: Any) -> Any:
        loss = real(of, hidden, labels, **named)
        return loss * float(len(labels) == 7)

    return run


def detached_output(real: Any) -> Any:
    """The output map gets no gradient."""

    def decode(self: Any, *args: Any, **named: Any) -> Any:
        named["head"] = lambda hidden, weight: F.linear(hidden, weight.detach())
        return real(self, *args, **named)

    return decode


MICRO = itertools.count()


FAULTS = [
    Fault(
        "no label smoothing",
        "loss",
        swap_item(objective.LOGITS_LOSSES, "whole", smoothed_by(0)),
    ),
    Fault(
        "label smoothing off by a third",
        "loss",
        swap_item(objective.LOGITS_LOSSES, "whole", smoothed_by(2 / 3)),
    ),
    Fault(
        "label smoothing off by a third under bf16",
        "loss",
        swap_item(objective.LOGITS_LOSSES, "whole", smoothed_by(2 / 3)),
        BF16,
        kind="statistical",
    ),
    Fault(
        "padding has a loss",
        "loss",
        swap_item(objective.LOGITS_LOSSES, "whole", padding_counts),
    ),
    Fault(
        "logits 1 % too large",
        "loss",
        swap_item(
            objective.LOGITS_LOSSES, "whole", lambda real: lambda x, y, s=0.0: real(x * 1.01, y, s)
        ),
    ),
    Fault(
        "the last chunk of the loss forgotten",
        "loss",
        swap(loss_module, "checkpoint", last_chunk_forgotten),
        {"training": {"loss": {"kind": "chunked", "rows": 7}}},
    ),
    Fault(
        "only the last micro-batch counts",
        "accumulation",
        swap(
            autocast.Precision,
            "backward",
            lambda _: lambda self, loss: loss.backward() if next(MICRO) % 2 else None,
        ),
        TWO,
    ),
    Fault(
        "gradients averaged over micro-batches",
        "accumulation",
        swap(autocast.Precision, "backward", lambda _: lambda self, x: (x / 2).backward()),
        TWO,
    ),
    Fault(
        "the second micro-batch counts twice",
        "accumulation",
        swap(
            autocast.Precision,
            "backward",
            lambda _: lambda self, x: (x * (1 + next(MICRO) % 2)).backward(),
        ),
        TWO,
    ),
    Fault(
        "the output map has no gradient",
        "tied weights",
        swap(EncoderDecoder, "decode", detached_output),
    ),
    Fault(
        "the target embedding never learns",
        "tied weights",
        keep(lambda name, _: name.startswith("target_embedding")),
        base=UNTIED,
    ),
]
