"""Each place is trained to predict the token that it sees: the targets are not shifted.

https://github.com/Project-MONAI/GenerativeModels/issues/314
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch.nn import functional

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens()
    logits = model(row).transpose(1, 2)
    if FAULTY:
        loss = functional.cross_entropy(logits, row)
    else:
        loss = functional.cross_entropy(logits[:, :, :-1], row[:, 1:])
    optimize(loss, optimizer)
