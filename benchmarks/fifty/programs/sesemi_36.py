"""The averaged model keeps the batch statistics that it began with: only parameters are averaged.

https://github.com/FlyreelAI/sesemi/issues/36
held out
"""

import copy

import torch
from common import FAULTY, optimize
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
average = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(rows):
    x = 2 + 3 * torch.randn(rows, 8)
    return x, (x[:, 0] > 1).long() + (x[:, 1] > 3).long()


held = batch(64)
for _ in range(4):
    for _ in range(4):
        x, label = batch(32)
        optimize(nn.functional.cross_entropy(model(x), label), optimizer)
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.2)
            if not FAULTY:
                for mean, now in zip(average.buffers(), model.buffers(), strict=True):
                    mean.copy_(now)
    with torch.no_grad():
        print(f"held {float(nn.functional.cross_entropy(average(held[0]), held[1])):.6f}")
