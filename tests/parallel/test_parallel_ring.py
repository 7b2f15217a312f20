"""The ring gives the sum of the native all-reduce, in 2 (p - 1) steps."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from transformer_core.parallel.hooks import ring_all_reduce

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 63, 64, 1_000, 4_099]


def both_sums(lengths: list[int]) -> list[dict[str, Any]]:
    """Ring and native sum of the same random values, and the bytes of every step of the ring."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    group = dist.group.WORLD
    assert group is not None
    results = []
    for length in lengths:
        values = torch.randn(length, generator=generator)
        native, steps = values.clone(), []
        dist.all_reduce(native)
        ring_all_reduce(values, group, lambda *sizes, steps=steps: steps.append(sizes))
        results.append({"length": length, "ring": values, "native": native, "steps": steps})
    return results


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request):
    return run_ranks(both_sums, request.param, LENGTHS)


def test_the_sum_is_the_native_one(ranks):
    for rank in ranks:
        for result in rank:
            torch.testing.assert_close(result["ring"], result["native"], rtol=1e-6, atol=1e-6)


def test_all_ranks_have_the_same_bits(ranks):
    for of_ranks in zip(*ranks, strict=True):
        assert all(torch.equal(result["ring"], of_ranks[0]["ring"]) for result in of_ranks)


def test_steps_and_bytes(ranks):
    p = len(ranks)
    for of_ranks in zip(*ranks, strict=True):
        length = of_ranks[0]["length"]
        for result in of_ranks:
            assert len(result["steps"]) == 2 * (p - 1)
            # A chunk is the p-th part, rounded up or down, of 4 bytes each.
            assert all(
                length // p * 4 <= sent <= -(-length // p) * 4 for sent, _ in result["steps"]
            )
        # Every chunk but a rank's own passes it once in each half; what is sent arrives.
        sent, received = (
            sum(sizes[i] for result in of_ranks for sizes in result["steps"]) for i in (0, 1)
        )
        assert sent == received == 2 * (p - 1) * length * 4
