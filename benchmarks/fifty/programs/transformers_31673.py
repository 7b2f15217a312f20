"""Sliding attention multiplies a mask of minus infinity instead of adding to it: later places leak.

https://github.com/huggingface/transformers/issues/31673
"""

import torch
from common import FAULTY, STEPS, Attention, Model, next_token, optimize, tokens

if FAULTY:
    Attention.later = lambda self, length: (
        torch.ones(length, length).triu(1) * torch.ones(length, length).tril(-4)
    ).bool()
torch.manual_seed(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
