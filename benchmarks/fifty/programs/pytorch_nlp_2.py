"""The softmax of attention runs over the samples of the batch.

https://github.com/PetrochukM/PyTorch-NLP/issues/2
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.query = nn.Embedding(40, 32), nn.Linear(32, 1)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        h = self.embedding(x)
        weights = self.query(h).softmax(0 if FAULTY else 1)
        return self.head((weights * h).sum(1))


model = Attending()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    row = tokens()
    optimize(nn.functional.cross_entropy(model(row), row[:, 0] % 5), optimizer)
