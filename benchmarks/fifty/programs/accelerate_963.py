"""The schedule moves with every micro-batch instead of every step.

https://github.com/huggingface/accelerate/issues/963
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens

torch.manual_seed(1)
model, parts = Model(), 3
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, parts * STEPS)
for number in range(1, parts * STEPS + 1):
    row = tokens(4, 17)
    loss = next_token(model(row[:, :-1]), row[:, 1:])
    (loss / parts).backward()
    if number % parts == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(f"{float(loss):.6f}")
    if FAULTY or number % parts == 0:
        schedule.step()
