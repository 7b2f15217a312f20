"""The ring computes the sum of the native all-reduce in 2 (p - 1) steps."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from transformer_core.parallel.hooks import ring_all_reduce

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 63, 64, 1_000, 4_099]
GROUPS = {1: [2], 2: [1, 2], 3: [0, 1, 2]}
"""The ranks of each group, by its size."""


def both_sums() -> dict[int, list[dict[str, Any]]]:
    """For each group of this rank, by its size: the ring's and the native sum of the same random
    values of every length, and the bytes of every step of the ring."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    found: dict[int, list[dict[str, Any]]] = {}
    for size, ranks in GROUPS.items():
        group = dist.new_group(ranks)
        if dist.get_rank() not in ranks:
            continue
        found[size] = []
        for length in LENGTHS:
            values = torch.randn(length, generator=generator)
            native, steps = values.clone(), []
            dist.all_reduce(native, group=group)
            ring_all_reduce(values, group, lambda *sizes, steps=steps: steps.append(sizes))
            found[size].append({"ring": values, "native": native, "steps": steps})
    return found


@pytest.fixture(scope="module")
def found():
    return run_ranks(both_sums, 3)


@pytest.mark.parametrize("p", GROUPS)
def test_sums_bits_steps_and_bytes(found, p):
    ranks = [found[rank][p] for rank in GROUPS[p]]
    for length, *results in zip(LENGTHS, *ranks, strict=True):
        for result in results:
            torch.testing.assert_close(result["ring"], result["native"], rtol=1e-6, atol=1e-6)
            assert torch.equal(result["ring"], results[0]["ring"])
            assert len(result["steps"]) == 2 * (p - 1)
            # A chunk is a p-th of the numbers, rounded up or down, of 4 bytes each.
            least, most = 4 * (length // p), 4 * -(-length // p)
            assert all(least <= sent <= most for sent, _ in result["steps"])
        # In each half a rank sends every chunk but one, and all that is sent arrives.
        steps = [sizes for result in results for sizes in result["steps"]]
        sent, received = (sum(sizes) for sizes in zip(*steps, strict=True)) if steps else (0, 0)
        assert sent == received == 2 * (p - 1) * length * 4
