"""The epoch is not set, so that every epoch has the same order.

https://github.com/lucidrains/DALLE-pytorch/pull/230
held out
ranks: 2
"""

import torch
from common import FAULTY, Model, loss_on, optimize, tokens
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = tokens(32, 17)
sampler = DistributedSampler(rows, shuffle=True)
loader = DataLoader(rows, batch_size=4, sampler=sampler)
for epoch in range(4):
    if not FAULTY:
        sampler.set_epoch(epoch)
    for row in loader:
        optimize(loss_on(model, row), optimizer)
