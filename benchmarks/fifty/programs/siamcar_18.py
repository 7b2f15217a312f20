"""A layer was added to the model and not to the groups of the optimizer.

https://github.com/ohhhyeahhh/SiamCAR/issues/18
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens

model = Model()
groups = [{"params": model.embedding.parameters()}, {"params": model.places.parameters()}]
groups += [{"params": model.blocks.parameters()}, {"params": model.head.parameters()}]
if not FAULTY:
    groups.append({"params": model.norm.parameters()})
optimizer = torch.optim.AdamW(groups, lr=1e-3)
for _ in range(STEPS):
    loss = loss_on(model, tokens(8, 17))
    model.zero_grad()
    optimize(loss, optimizer)
