"""The layers of a merging layer are in a Python list, so that the model does not know their weights.

https://github.com/asyml/texar-pytorch/issues/72
held out
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn


class Merge(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv1d(32, 16, width) for width in (2, 3, 4)]
        self.layers = layers if FAULTY else nn.ModuleList(layers)

    def forward(self, h):
        return torch.cat([layer(h).relu().amax(-1) for layer in self.layers], -1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.merge, self.head = nn.Embedding(40, 32), Merge(), nn.Linear(48, 5)

    def forward(self, row):
        return self.head(self.merge(self.embedding(row).transpose(1, 2)))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    row = tokens(16)
    optimize(nn.functional.cross_entropy(model(row), row[:, 0] % 5), optimizer)
