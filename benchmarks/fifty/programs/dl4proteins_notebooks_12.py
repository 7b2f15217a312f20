"""The scores of a head are divided by the root of the model's width instead of the head's.

https://github.com/Graylab/DL4Proteins-notebooks/issues/12
held out a third time
"""

import torch
from common import FAULTY, Model, train
from torch import nn


class Head(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, size, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        width = x.shape[-1] if FAULTY else k.shape[-1]
        weights = q @ k.transpose(-2, -1) * width**-0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return weights.masked_fill(later, float("-inf")).softmax(-1) @ v


class Heads(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.heads = nn.ModuleList(Head(32 // number) for _ in range(number))
        self.out = nn.Linear(32, 32)

    def forward(self, x, mask=None):
        return self.out(torch.cat([head(x) for head in self.heads], -1))


model = Model()
for block in model.blocks:
    block.attention = Heads(4)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
