"""Ring all-reduce by point-to-point messages (Patarasuk and Yuan, JPDC 69, 2009)."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Count = Callable[[int, int], None]
"""Told the bytes sent and received by every step."""


def ring_all_reduce(
    values: Tensor, group: dist.ProcessGroup, count: Count = lambda sent, received: None
) -> None:
    """Replace ``values``, contiguous and of the same shape on all ranks, by their sum over ranks.

    ``values`` is cut into p chunks, one for each of the p ranks. In p - 1 steps of reduce-scatter
    every rank sends a chunk to its right neighbour and adds the one that comes from its left, so
    that each rank ends up with one whole sum; in p - 1 steps of all-gather the sums go round. A
    rank sends and receives about 2 (p - 1) / p of the bytes, however many ranks there are. All
    ranks get the same bits, because every sum is made in one place.
    """
    rank, world_size = group.rank(), group.size()
    chunks = values.view(-1).tensor_split(world_size)
    incoming = torch.empty_like(chunks[0])
    right, left = (dist.get_global_rank(group, (rank + offset) % world_size) for offset in (1, -1))
    for step in range(2 * (world_size - 1)):
        reducing = step < world_size - 1
        # A chunk is at home, and complete, on the rank before the one of its number.
        outgoing = chunks[(rank - step) % world_size]
        target = chunks[(rank - step - 1) % world_size]
        received = incoming[: target.numel()] if reducing else target
        # A chunk is empty where there are fewer values than ranks; both ends know, and skip it.
        operations = []
        if outgoing.numel():
            operations.append(dist.P2POp(dist.isend, outgoing, right, group))
        if received.numel():
            operations.append(dist.P2POp(dist.irecv, received, left, group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        if reducing:
            target += received
        count(outgoing.nbytes, received.nbytes)
