"""What is trained on, and in which order."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tests.attacks.planted.fault import TWO, Fault
from tests.attacks.planted.planting import batches, each_micro, swap
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


def without_a_pair(micro: Any) -> Any:
    labels = micro.target_output.clone()
    labels[0] = PAD
    return replace(micro, target_output=labels)


def shuffled(micro: Any) -> Any:
    return replace(micro, source=micro.source.roll(1, 0))


def told(micro: Any) -> Any:
    return replace(micro, target_input=micro.target_output)


FAULTS = [
    Fault("a global batch is used again", "data order", again),
    Fault("one pair is left out", "data order", each_micro(without_a_pair)),
    Fault("sources and targets are of other pairs", "data order", each_micro(shuffled)),
    Fault("the decoder sees the token it predicts", "data order", each_micro(told)),
    Fault(
        "the order has another seed",
        "data order",
        swap(
            Feed,
            "__init__",
            lambda real: (
                lambda self, store, batching, seed, *rest, **n: real(
                    self,
                    store,
                    batching,
                    n.pop("seed", seed) + bool(n.get("micro_batches") == 2),
                    *rest,
                    **n,
                )
            ),
        ),
        TWO,
    ),
]
