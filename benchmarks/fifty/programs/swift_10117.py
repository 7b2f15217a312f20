"""A loss that is already divided by the tokens of the whole step is divided by its parts once more.

https://github.com/modelscope/ms-swift/issues/10117
"""

import torch
from common import FAULTY, STEPS, Model, accumulate, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    batches = [tokens(2, 17) for _ in range(parts)]
    items = sum(row[:, 1:].numel() for row in batches)
    losses = (loss_on(model, row, "sum") / items for row in batches)
    accumulate(losses, optimizer, parts if FAULTY else 1)
