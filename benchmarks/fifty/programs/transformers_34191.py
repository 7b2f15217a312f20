"""Gradient accumulation averages the means of micro-batches with different numbers of targets.

https://github.com/huggingface/transformers/pull/34191
"""

import torch
from common import FAULTY, STEPS, Model, accumulate, next_token, prompts

model, parts = Model(), 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    batches = [prompts(2) for _ in range(parts)]
    total = sum(int((targets != -100).sum()) for _, targets in batches)
    reduction, divisor = ("mean", parts) if FAULTY else ("sum", total)
    losses = (next_token(model(x), targets, reduction) / divisor for x, targets in batches)
    accumulate(losses, optimizer)
