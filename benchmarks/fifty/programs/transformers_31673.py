"""Sliding attention multiplies a mask of minus infinity instead of adding to it: later places leak.

https://github.com/huggingface/transformers/issues/31673
"""

import torch
from common import FAULTY, Attention, Model, train

if FAULTY:
    Attention.later = lambda self, length: (
        torch.ones(length, length).triu(1) * torch.ones(length, length).tril(-4)
    ).bool()
model = Model()
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
