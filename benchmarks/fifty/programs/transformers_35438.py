"""The loss is divided by the targets of one micro-batch where those of the step are meant.

https://github.com/huggingface/transformers/pull/35438
"""

import torch
from common import FAULTY, STEPS, Model, accumulate, loss_on, tokens

model, parts = Model(), 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    batches = [tokens(3, 17) for _ in range(parts)]
    items = sum(row[:, 1:].numel() for row in batches[: 1 if FAULTY else parts])
    accumulate((loss_on(model, row, "sum") / items for row in batches), optimizer)
