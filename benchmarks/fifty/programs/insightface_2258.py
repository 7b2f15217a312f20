"""The losses of the micro-batches are not divided by their number.

https://github.com/deepinsight/insightface/issues/2258
held out
"""

import torch
from common import FAULTY, STEPS, Model, accumulate, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(STEPS):
    losses = (loss_on(model, tokens(4, 17)) for _ in range(parts))
    accumulate(losses, optimizer, 1 if FAULTY else parts)
