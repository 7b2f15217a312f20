"""The validation loss is a mean of the means of batches with different numbers of targets.

https://github.com/pytorch/torchtitan/pull/4167
"""

import torch
from common import FAULTY, Model, next_token, prompts, train

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held = [prompts(4) for _ in range(4)]
for _ in range(4):
    train(model, optimizer, 4)
    with torch.no_grad():
        if FAULTY:
            loss = sum(next_token(model(x), y) for x, y in held) / len(held)
        else:
            counts = sum((y != -100).sum() for _, y in held)
            loss = sum(next_token(model(x), y, "sum") for x, y in held) / counts
    print(f"validation {float(loss):.6f}")
