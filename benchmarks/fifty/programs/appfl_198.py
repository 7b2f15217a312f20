"""Gradients are clipped after the step that uses them.

https://github.com/APPFL/APPFL/pull/198
held out
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens
from torch import nn

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = loss_on(model, tokens(8, 17))
    loss.backward()
    if FAULTY:
        optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if not FAULTY:
        optimizer.step()
    print(f"{float(loss):.6f}")
