"""A static graph and accumulation under no_sync: gradients are not averaged from the second step on.

https://github.com/pytorch/pytorch/pull/187732
replay: torch 2.13 refuses it with an assertion, or averages as it should
ranks: 2
"""

from contextlib import nullcontext

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens
from torch import distributed, nn

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model(), static_graph=FAULTY)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + distributed.get_rank())
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(2):
        row = tokens(4, 17)
        # The first step averages both parts, so that the graph is known.
        with model.no_sync() if part == 0 and step else nullcontext():
            loss = loss_on(model, row)
            (loss / 2).backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
