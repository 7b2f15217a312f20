"""Weights in bfloat16 without a copy in float32: norms of 1 never move.

https://github.com/vllm-project/speculators/pull/765
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens

model = Model()
if FAULTY:
    model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(STEPS):
    row = tokens(8, 17)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not FAULTY):
        loss = next_token(model(row[:, :-1]).float(), row[:, 1:])
    optimize(loss, optimizer)
