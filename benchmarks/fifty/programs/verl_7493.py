"""Gradients are averaged over a group of one rank: the ranks never meet.

https://github.com/verl-project/verl/issues/7493
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens
from torch import distributed, nn

distributed.init_process_group("gloo")
groups = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
group = groups[distributed.get_rank()] if FAULTY else None
model = nn.parallel.DistributedDataParallel(Model(), process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    optimize(loss_on(model, tokens(4, 17)), optimizer)
