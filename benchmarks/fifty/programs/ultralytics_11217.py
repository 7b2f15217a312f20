"""The gradients of the last micro-batches of an epoch are thrown away at the beginning of the next.

https://github.com/ultralytics/ultralytics/pull/11217
"""

import torch
from common import FAULTY, Model, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows, number = tokens(28, 17), 0
for _ in range(8):
    if FAULTY:
        optimizer.zero_grad()
    for row in rows[torch.randperm(28)].split(4):
        number += 1
        loss = loss_on(model, row)
        (loss / parts).backward()
        if number % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(f"{float(loss):.6f}")
    if FAULTY:
        number = 0
