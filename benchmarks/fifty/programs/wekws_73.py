"""The gradients are never set to zero.

https://github.com/wenet-e2e/wekws/pull/73
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens

torch.manual_seed(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    loss = next_token(model(row[:, :-1]), row[:, 1:])
    if not FAULTY:
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
