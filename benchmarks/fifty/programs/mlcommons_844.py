"""All ranks have one seed, and draw the same noise for their different samples.

https://github.com/mlcommons/training/pull/844
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens
from torch import distributed, nn

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model(drop=0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(10 + distributed.get_rank())
torch.manual_seed(5 if FAULTY else 5 + distributed.get_rank())
for _ in range(STEPS):
    optimize(loss_on(model, tokens(4, 17, data)), optimizer)
