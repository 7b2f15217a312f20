"""The schedule moves once for each of four processes in every step.

https://github.com/huggingface/transformers/pull/24088
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4 * STEPS)
for _ in range(STEPS):
    optimize(loss_on(model, tokens(8, 17)), optimizer)
    for _ in range(4 if FAULTY else 1):
        schedule.step()
