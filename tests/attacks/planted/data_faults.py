"""What is trained on, and in which order."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.attacks.planted.fault import TWO, fault
from tests.attacks.planted.planting import batches, each_micro
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.data.tokenizing.special_tokens import PAD


def again() -> AbstractContextManager[Any]:
    """The first batch once more."""
    first: list[GlobalBatch] = []

    def change(batch: GlobalBatch) -> GlobalBatch:
        if not first:
            first.append(batch)
        return replace(batch, micro_batches=first[0].micro_batches)

    return batches(change)()


fault("a global batch is used again", "data order", again)


@fault("one pair is left out", "data order", each_micro)
def without_a_pair(micro):
    labels = micro.target_output.clone()
    labels[0] = PAD
    return replace(micro, target_output=labels)


@fault("sources and targets are of other pairs", "data order", each_micro)
def shuffled(micro):
    return replace(micro, source=micro.source.roll(1, 0))


@fault("the decoder sees the token it predicts", "data order", each_micro)
def told(micro):
    return replace(micro, target_input=micro.target_output)


@fault("the order has another seed", "data order", Feed, "__init__", change=TWO)
def _(real, self, store, batching, seed, *rest, **n):
    return real(
        self, store, batching, n.pop("seed", seed) + bool(n.get("micro_batches") == 2), *rest, **n
    )
