"""The wrapper learns after the last forward pass that gradients are to be averaged: it does not.

https://github.com/karpathy/build-nanogpt/pull/30
held out a third time
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens
from torch import distributed, nn

PARTS = 4
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for part in range(PARTS):
        row = tokens(4, 17)
        if not FAULTY:
            model.require_backward_grad_sync = part == PARTS - 1
        loss = next_token(model(row[:, :-1]), row[:, 1:]) / PARTS
        if FAULTY:
            model.require_backward_grad_sync = part == PARTS - 1
        loss.backward()
        total += float(loss)
    optimizer.step()
    print(f"{total:.6f}")
