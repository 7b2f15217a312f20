"""Two ranks, started by torchrun, average their gradients; with ``raise`` one fails, and the other
waits; with ``accumulate`` a step has two backward passes."""

import sys

import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = distributed.get_rank()
generator = torch.Generator().manual_seed(rank)
for step in range(500):
    if step == 12 and rank == 1 and "raise" in sys.argv:
        raise ValueError("rank 1 has no data")
    optimizer.zero_grad(set_to_none="accumulate" not in sys.argv)
    for _ in range(1 + ("accumulate" in sys.argv)):
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
    optimizer.step()
