"""The softmax of attention runs over an axis of length one: every weight is 1.

https://github.com/phanideepgampa/stacked-capsule-networks/pull/5
held out
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.score = nn.Embedding(40, 32), nn.Linear(32, 1)
        self.head = nn.Linear(32, 5)

    def forward(self, row):
        h = self.embedding(row)
        weights = self.score(h).softmax(2 if FAULTY else 1)
        return self.head((weights * h).sum(1))


model = Pool()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    row = tokens(16)
    optimize(nn.functional.cross_entropy(model(row), row[:, 0] % 5), optimizer)
