"""The loss is divided by the tokens of all generated rows, of which a step takes only a part.

https://github.com/huggingface/trl/pull/6024
"""

import torch
from common import FAULTY, STEPS, Model, accumulate, tokens
from torch.nn import functional


def loss_of(row):
    logs = functional.log_softmax(model(row[:, :-1]), -1)
    return -logs.gather(-1, row[:, 1:, None]).sum()


model, generated, parts = Model(), 4, 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    batches = [tokens(2, 17) for _ in range(generated)]
    items = sum(row[:, 1:].numel() for row in (batches if FAULTY else batches[:parts]))
    accumulate((loss_of(row) / items for row in batches[:parts]), optimizer)
