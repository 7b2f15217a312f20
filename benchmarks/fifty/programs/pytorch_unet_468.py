"""Gradients are clipped while they are still multiplied by the scaler's factor.

https://github.com/milesial/Pytorch-UNet/issues/468
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens
from torch import nn

torch.manual_seed(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024)
for _ in range(STEPS):
    row = tokens(8, 17)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = next_token(model(row[:, :-1]), row[:, 1:])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if not FAULTY:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"{float(loss):.6f}")
