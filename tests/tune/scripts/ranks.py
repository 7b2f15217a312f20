"""Two ranks, started by torchrun, average their gradients."""

import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(distributed.get_rank())
for _ in range(500):
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=generator)).square().mean().backward()
    optimizer.step()
