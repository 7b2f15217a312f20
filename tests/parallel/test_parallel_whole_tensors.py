"""Sharded tensors gathered in one message equal the whole tensors that they stand for."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from tests.distributed import run_ranks
from transformer_core.parallel import sharded_weights
from transformer_core.parallel.sharded_weights import whole_tensors

SHAPES = [(5, 3), (1,), (4, 2, 3), (3,), (2, 40)]
"""Shapes, also with fewer rows than ranks and with rows that cannot be divided evenly."""


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


def test_tensors_are_restored_however_many_share_a_message():
    expected = originals() | {"replicated": torch.arange(4.0), "of no ranks": torch.arange(3.0)}
    for rank in run_ranks(gathered, 3):
        for found in rank:
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
