"""Loss, tied weights, and micro-batches that are added up."""

import itertools
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tests.attacks.planted.fault import IN_BF16, TWO, UNTIED, fault, faults_of
from tests.attacks.planted.planting import keep, swap
from transformer_core.models import loss as loss_module
from transformer_core.models import objective
from transformer_core.models.transformer import EncoderDecoder
from transformer_core.training import precision


def padding_counts(real: Any) -> Any:
    def loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing, reduction="sum"
        )

    return loss


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


accumulated = faults_of("accumulation", change=TWO)


ONE_PASS = {"training": {"loss": {"kind": "one_pass"}}}


in_one_pass = faults_of("loss", change=ONE_PASS)
whole_loss = faults_of("loss", objective.LOGITS_LOSSES, "whole")


whole_loss("no label smoothing", lambda real, x, y, s=0.0: real(x, y, 0.0))


@whole_loss("label smoothing off by a third")
@whole_loss("label smoothing off by a third under bf16", **IN_BF16)
def _(real, x, y, s=0.0):
    return real(x, y, s * 2 / 3)


whole_loss("padding has a loss", padding_counts, made=True)
whole_loss("logits 1 % too large", lambda real, x, y, s=0.0: real(x * 1.01, y, s))


@fault(
    "the last chunk of the loss forgotten",
    "loss",
    loss_module,
    "checkpoint",
    change={"training": {"loss": {"kind": "chunked", "rows": 7}}},
)
def last_chunk_forgotten(real, of, hidden, labels, **named):
    """Chunks shorter than the others have no loss."""
    loss = real(of, hidden, labels, **named)
    return loss * float(len(labels) == 7)


@accumulated("only the last micro-batch counts", precision.Precision, "backward", made=True)
def last_micro_batch_alone(real):
    count = itertools.count()
    return lambda self, loss: loss.backward() if next(count) % 2 else None


@accumulated("gradients averaged over micro-batches", precision.Precision, "backward")
def _(real, self, x):
    return (x / 2).backward()


@accumulated("the second micro-batch counts twice", precision.Precision, "backward", made=True)
def second_micro_batch_twice(real):
    count = itertools.count()
    return lambda self, loss: (loss * (1 + next(count) % 2)).backward()


@fault("the output map has no gradient", "tied weights", EncoderDecoder, "decode")
def detached_output(real, self, *args, **named):
    named["head"] = lambda hidden, weight: F.linear(hidden, weight.detach())
    return real(self, *args, **named)


@fault("the target embedding never learns", "tied weights", keep, base=UNTIED)
def _(name, _):
    return name.startswith("target_embedding")


@in_one_pass("the loss in one pass gives the output map 1 % less", loss_module._OnePass, "backward")
def less_for_the_output(real, ctx, grad):
    d_hidden, d_output, *rest = real(ctx, grad)
    return d_hidden, d_output * 0.99, *rest


@in_one_pass(
    "the loss in one pass counts the first token of a chunk twice", loss_module, "_products"
)
def first_row_twice(real, hidden, output, d_logits, *rest):
    d_logits = d_logits.clone()
    d_logits[0] *= 2
    real(hidden, output, d_logits, *rest)


accumulated("micro-batches count alike, however many tokens they have", each_micro_alike)


@fault(
    "tied weights get the gradient of the output map twice",
    "tied weights",
    EncoderDecoder,
    "decode",
)
def doubled_output(real, self, *args, **named):
    named["head"] = lambda hidden, w: F.linear(hidden, w + w - w.detach())
    return real(self, *args, **named)


@fault("targets are embedded at another scale", "tied weights", EncoderDecoder, "_embed", made=True)
def targets_at_another_scale(real):
    count = itertools.count()

    def embed(self: Any, embedding: Any, tokens: Tensor, *args: Any, **named: Any) -> Any:
        second = next(count) % 2  # the source comes first
        self.scale *= 1.01 if second else 1.0
        try:
            return real(self, embedding, tokens, *args, **named)
        finally:
            self.scale /= 1.01 if second else 1.0

    return embed
