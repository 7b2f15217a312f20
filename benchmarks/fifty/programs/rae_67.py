"""The gradients are set to zero with each micro-batch: only the last one counts.

https://github.com/bytetriper/RAE/issues/67
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    optimizer.zero_grad()
    for _ in range(parts):
        if FAULTY:
            optimizer.zero_grad()
        loss = loss_on(model, tokens(2, 17))
        (loss / parts).backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
