"""Each rank shuffles with another seed, so that their shares of the data overlap.

https://github.com/NVlabs/LongLive/issues/71
ranks: 2
"""

import torch
from common import FAULTY, Model, loss_on, optimize, tokens
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = tokens(48, 17)
sampler = DistributedSampler(rows, seed=7 * distributed.get_rank() if FAULTY else 7)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for row in DataLoader(rows, batch_size=4, sampler=sampler):
        optimize(loss_on(model, row), optimizer)
