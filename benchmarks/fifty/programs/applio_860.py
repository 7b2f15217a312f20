"""The optimizer steps once more after the scaler has stepped.

https://github.com/IAHispano/Applio/pull/860
held out
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens
from torch import nn

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024)
for _ in range(STEPS):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_on(model, tokens(8, 17))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if FAULTY:
        optimizer.step()
    print(f"{float(loss):.6f}")
