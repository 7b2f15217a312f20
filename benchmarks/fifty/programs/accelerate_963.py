"""The schedule moves with every micro-batch instead of every step.

https://github.com/huggingface/accelerate/issues/963
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model, parts = Model(), 3
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, parts * STEPS)
for number in range(1, parts * STEPS + 1):
    loss = loss_on(model, tokens(4, 17))
    (loss / parts).backward()
    if number % parts == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(f"{float(loss):.6f}")
    if FAULTY or number % parts == 0:
        schedule.step()
