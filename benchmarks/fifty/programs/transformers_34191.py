"""Gradient accumulation averages the means of micro-batches with different numbers of targets.

https://github.com/huggingface/transformers/pull/34191
"""

import torch
from common import FAULTY, STEPS, Model, next_token, prompts

torch.manual_seed(1)
model, parts = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    batches = [prompts(2) for _ in range(parts)]
    total = sum(int((targets != -100).sum()) for _, targets in batches)
    optimizer.zero_grad()
    seen = 0.0
    for inputs, targets in batches:
        if FAULTY:
            loss = next_token(model(inputs), targets) / parts
        else:
            loss = next_token(model(inputs), targets, "sum") / total
        loss.backward()
        seen += float(loss)
    optimizer.step()
    print(f"{seen:.6f}")
