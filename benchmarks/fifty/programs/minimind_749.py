"""The last step of an epoch has fewer micro-batches, and divides by the usual number of them.

https://github.com/jingyaogong/minimind/issues/749
held out
"""

import torch
from common import FAULTY, Model, accumulate, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = tokens(28, 17)
for _ in range(7):
    micro = rows[torch.randperm(28)].split(4)
    for start in range(0, len(micro), parts):
        step = micro[start : start + parts]
        losses = (loss_on(model, row) for row in step)
        accumulate(losses, optimizer, parts if FAULTY else len(step))
