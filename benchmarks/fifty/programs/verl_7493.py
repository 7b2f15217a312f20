"""Gradients are averaged over a group of one rank: the ranks never meet.

https://github.com/verl-project/verl/issues/7493
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens
from torch import distributed, nn

distributed.init_process_group("gloo")
torch.manual_seed(1)
groups = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
group = groups[distributed.get_rank()] if FAULTY else None
model = nn.parallel.DistributedDataParallel(Model(), process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    row = tokens(4, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
