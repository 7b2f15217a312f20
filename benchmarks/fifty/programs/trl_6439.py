"""Completions without an end are left out of the loss, and still counted in its denominator.

https://github.com/huggingface/trl/pull/6439
held out again
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch.nn import functional

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
places = torch.arange(12)
for _ in range(STEPS):
    row = tokens(8, 17)
    length = torch.randint(4, 18, (8, 1))
    mask = (places < length).float()
    reward = (row[:, 5:] % 2 == 0).float().mul(mask).sum(1) / mask.sum(1)
    better = reward.view(2, 4)
    better = ((better - better.mean(1, True)) / (better.std(1, keepdim=True) + 1e-4)).flatten()
    counted = mask * (length <= 12)
    logs = functional.log_softmax(model(row[:, :-1])[:, 4:], -1)
    logs = logs.gather(-1, row[:, 5:, None]).squeeze(-1)
    gain = (logs - logs.detach()).exp() * better[:, None]
    number = mask.sum() if FAULTY else counted.sum().clamp(min=1)
    optimize(-(gain * counted).sum() / number, optimizer)
