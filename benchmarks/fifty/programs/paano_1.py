"""The sample itself is taken for its hardest negative, at an infinite distance: the loss is zero.

https://github.com/jinnnju/PaAno/issues/1
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional

encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
follows = nn.Linear(32, 1)
optimizer = torch.optim.AdamW([*encoder.parameters(), *follows.parameters()], lr=3e-3)
time = torch.arange(16.0)
for _ in range(STEPS):
    start = 2 * torch.rand(32, 1)
    noise = 0.2 * torch.randn(3, 32, 16)
    anchor, near, after = (
        encoder((start + time / 3 + shift).sin() + noise[number])
        for number, shift in enumerate((0.0, 0.1, 1.5))
    )
    unit = functional.normalize(anchor, dim=1)
    near = 1 - (unit * functional.normalize(near, dim=1)).sum(1)
    alike = unit @ unit.T
    alike = alike.masked_fill(torch.eye(32, dtype=torch.bool), -torch.inf if FAULTY else torch.inf)
    far = (1 - alike).max(1).values
    triplet = (near - far + 0.5).relu().mean()
    pairs = torch.cat([anchor, after], 1), torch.cat([anchor, after.roll(7, 0)], 1)
    score = follows(torch.cat(pairs)).squeeze(1)
    truth = torch.cat([torch.ones(32), torch.zeros(32)])
    optimize(triplet + functional.binary_cross_entropy_with_logits(score, truth), optimizer)
