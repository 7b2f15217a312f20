"""The forward pass goes around the wrapper: gradients of the ranks are never averaged.

https://github.com/jingyaogong/minimind/pull/854
held out
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens
from torch import distributed, nn

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model())
policy = model.module if FAULTY else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    optimize(loss_on(policy, tokens(4, 17)), optimizer)
