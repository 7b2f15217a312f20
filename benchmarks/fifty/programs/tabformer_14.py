"""An encoder that takes the batch second gets it first: a field attends to other rows, not fields.

https://github.com/IBM/TabFormer/pull/14
held out a third time
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

FIELDS, VALUES = 6, 8


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Embedding(FIELDS * VALUES, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(FIELDS * 32, 2)

    def forward(self, row):
        h = self.values(row + VALUES * torch.arange(FIELDS))
        h = self.encoder(h) if FAULTY else self.encoder(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h.flatten(1))


model = Table()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = torch.randint(0, VALUES, (32, FIELDS))
    label = (row[:, 0] > row[:, 3]).long()
    optimize(nn.functional.cross_entropy(model(row), label), optimizer)
