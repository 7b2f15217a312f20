"""A warm-up that is given in steps moves once an epoch, and never ends.

https://github.com/coqui-ai/TTS/issues/1611
held out again
"""

import torch
from common import FAULTY, Model, loss_on, optimize, tokens
from torch.utils.data import DataLoader

WARM = 8


def rate(step):
    return WARM**0.5 * min((step + 1) * WARM**-1.5, (step + 1) ** -0.5)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
loader = DataLoader(tokens(32, 17), batch_size=8, shuffle=True)
for _ in range(4):
    for row in loader:
        optimize(loss_on(model, row), optimizer)
        if not FAULTY:
            schedule.step()
    if FAULTY:
        schedule.step()
