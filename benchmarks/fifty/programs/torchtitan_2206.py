"""Each rank divides by its own valid tokens, so that tokens of ranks with few of them count more.

https://github.com/pytorch/torchtitan/pull/2206
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, prompts
from torch import distributed, nn

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    inputs, targets = prompts(4)
    count = (targets != -100).sum()
    distributed.all_reduce(count)
    if FAULTY:
        loss = next_token(model(inputs), targets)
    else:
        loss = next_token(model(inputs), targets, "sum") * distributed.get_world_size() / count
    optimize(loss, optimizer)
