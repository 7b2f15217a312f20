"""The squared error of predictions (n, 1) and targets (n) is that of all pairs.

https://github.com/jsboige/CoursIA/pull/926
held out
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    walk = torch.randn(64, 17).cumsum(1)
    guess, target = model(walk[:, :-1]), walk[:, -1]
    optimize(nn.functional.mse_loss(guess, target if FAULTY else target.view_as(guess)), optimizer)
