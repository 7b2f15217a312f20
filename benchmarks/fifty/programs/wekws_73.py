"""The gradients are never set to zero.

https://github.com/wenet-e2e/wekws/pull/73
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    loss = loss_on(model, tokens(8, 17))
    if not FAULTY:
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
