"""The ring's sum is that of the native all-reduce; shards gathered in one message are whole tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.placement_types import _StridedShard

from tests.distributed import run_ranks
from transformer_core.parallel import sharded_weights
from transformer_core.parallel.hooks import ring_all_reduce
from transformer_core.parallel.sharded_weights import whole_tensors

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 63, 64, 1_000, 4_099]
GROUPS = {1: [2], 2: [1, 2], 3: [0, 1, 2]}
"""The ranks of each group, by its size."""
SHAPES = [(5, 3), (1,), (4, 2, 3), (3,), (2, 40)]
"""Shapes, also with fewer rows than ranks and with rows that cannot be divided evenly."""


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


def originals() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {str(shape): torch.randn(shape, generator=generator) for shape in SHAPES}


def gathered() -> list[dict[str, Tensor]]:
    """The tensors gathered all in one message, and a few in each."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors: dict[str, Tensor] = {
        name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in originals().items()
    }
    tensors["replicated"] = distribute_tensor(torch.arange(4.0), mesh, [Replicate()])
    tensors["of no ranks"] = torch.arange(3.0)
    found = []
    for sharded_weights.TOGETHER in (2**24, 20):
        found.append(dict(whole_tensors(tensors)))
    return found


def work_of_a_rank() -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Tensor]]]:
    return both_sums(), gathered()


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(work_of_a_rank, 3)


def test_a_shard_with_gaps_is_not_in_rows(monkeypatch):
    """To older versions of torch it equals one without."""
    monkeypatch.setattr(_StridedShard, "__eq__", lambda self, other: self.dim == other.dim)
    for place, rows in ((Shard(0), True), (_StridedShard(0, split_factor=2), False)):
        tensor = SimpleNamespace(full_tensor=None, placements=(place,))
        assert sharded_weights._is_in_rows(tensor) == rows


@pytest.mark.parametrize("p", GROUPS)
def test_sums_bits_steps_and_bytes_of_the_ring(ranks, p):
    of_group = [ranks[rank][0][p] for rank in GROUPS[p]]
    for length, *results in zip(LENGTHS, *of_group, strict=True):
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


def test_tensors_are_restored_however_many_share_a_message(ranks):
    expected = originals() | {"replicated": torch.arange(4.0), "of no ranks": torch.arange(3.0)}
    for _, restored in ranks:
        for found in restored:
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
