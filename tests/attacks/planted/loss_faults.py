"""Loss, tied weights, and micro-batches that are added up."""

import itertools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tests.attacks.planted.fault import BF16, TWO, UNTIED, Fault
from tests.attacks.planted.planting import keep, swap, swap_item
from transformer_core.models import loss as loss_module
from transformer_core.models import loss as one_pass_loss
from transformer_core.models import objective
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.training import precision as autocast


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


def doubled_output(real: Any) -> Any:
    """The same logits, whose gradient reaches the output map twice."""

    def decode(self: Any, *args: Any, **named: Any) -> Any:
        named["head"] = lambda hidden, w: F.linear(hidden, w + w - w.detach())
        return real(self, *args, **named)

    return decode


def targets_at_another_scale(real: Any) -> Any:
    count = itertools.count()

    def embed(self: Any, embedding: Any, tokens: Tensor, *args: Any, **named: Any) -> Any:
        second = next(count) % 2  # the source comes first
        self.scale *= 1.01 if second else 1.0
        try:
            return real(self, embedding, tokens, *args, **named)
        finally:
            self.scale /= 1.01 if second else 1.0

    return embed


def less_for_the_output(real: Any) -> Any:
    def backward(ctx: Any, grad: Tensor) -> Any:
        d_hidden, d_output, *rest = real(ctx, grad)
        return d_hidden, d_output * 0.99, *rest

    return backward


def first_row_twice(real: Any) -> Any:
    def products(hidden: Any, output: Any, d_logits: Tensor, *rest: Any) -> None:
        d_logits = d_logits.clone()
        d_logits[0] *= 2
        real(hidden, output, d_logits, *rest)

    return products


def each_micro_alike() -> Any:
    """Means of micro-batches, averaged: every token of a short one weighs more."""

    def make(real: Any) -> Any:
        def forward(self: Any, source: Tensor, given: Tensor, labels: Tensor, *rest: Any) -> Any:
            own = int((labels != 0).sum())
            shares = self.__dict__.setdefault("tokens_and_micro_batches", [0, 0])
            shares[0] += own
            shares[1] += 1
            return real(self, source, given, labels, *rest) * (shares[0] / shares[1] / own)

        return forward

    return swap(objective.Objective, "forward", make)()


def last_micro_batch_alone(_: Any) -> Any:
    count = itertools.count()
    return lambda self, loss: loss.backward() if next(count) % 2 else None


def second_micro_batch_twice(_: Any) -> Any:
    count = itertools.count()
    return lambda self, loss: (loss * (1 + next(count) % 2)).backward()


ONE_PASS = {"training": {"loss": {"kind": "one_pass"}}}


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
        swap(autocast.Precision, "backward", last_micro_batch_alone),
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
        swap(autocast.Precision, "backward", second_micro_batch_twice),
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
    Fault(
        "the loss in one pass gives the output map 1 % less",
        "loss",
        swap(one_pass_loss._OnePass, "backward", less_for_the_output),
        ONE_PASS,
    ),
    Fault(
        "the loss in one pass counts the first token of a chunk twice",
        "loss",
        swap(one_pass_loss, "_products", first_row_twice),
        ONE_PASS,
    ),
    Fault(
        "micro-batches count alike, however many tokens they have",
        "accumulation",
        each_micro_alike,
        TWO,
    ),
    Fault(
        "tied weights get the gradient of the output map twice",
        "tied weights",
        swap(EncoderDecoder, "decode", doubled_output),
    ),
    Fault(
        "targets are embedded at another scale",
        "tied weights",
        swap(EncoderDecoder, "_embed", targets_at_another_scale),
    ),
]
