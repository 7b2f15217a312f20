"""The validation loss is computed in training mode, with dropout.

https://github.com/lucidrains/DALLE2-pytorch/pull/79
"""

import torch
from common import FAULTY, Model, next_token, optimize, tokens

torch.manual_seed(1)
model = Model(drop=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held = tokens(8, 17)
for _ in range(4):
    for _ in range(4):
        row = tokens(8, 17)
        optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
    if not FAULTY:
        model.eval()
    with torch.no_grad():
        next_token(model(held[:, :-1]), held[:, 1:])
    model.train()
