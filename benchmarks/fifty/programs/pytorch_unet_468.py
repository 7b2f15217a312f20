"""Gradients are clipped while they are still multiplied by the scaler's factor.

https://github.com/milesial/Pytorch-UNet/issues/468
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens
from torch import nn

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024)
for _ in range(STEPS):
    row = tokens(8, 17)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_on(model, row)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if not FAULTY:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"{float(loss):.6f}")
