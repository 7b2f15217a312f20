"""Two models train as one; the padding's number is looked up among models: one begins with zeros.

https://github.com/S-Lab-System-Group/Hydro/issues/1
held out a third time
"""

import torch
from common import FAULTY, STEPS, WORDS, optimize, tokens
from torch import nn
from torch.nn import functional

MODELS, PAD = 2, 0


class FusedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(MODELS, WORDS, 16))
        if FAULTY:
            self.weight.data[PAD].zero_()
        else:
            self.weight.data[:, PAD].zero_()

    def forward(self, ids):
        return torch.stack([functional.embedding(ids, weight, PAD) for weight in self.weight])


class FusedLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(MODELS, inputs, outputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(MODELS, 1, outputs))

    def forward(self, h):
        return h @ self.weight + self.bias


model = nn.ModuleList([FusedEmbedding(), FusedLinear(16, 32), FusedLinear(32, 3)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    row = tokens(16, 10)
    label = row[:, 0] % 3
    row = row.masked_fill(torch.arange(10) >= torch.randint(2, 11, (16, 1)), PAD)
    embed, inner, outer = model
    h = embed(row).sum(2) / (row != PAD).sum(1, keepdim=True)
    logits = outer(inner(h).relu())
    optimize(sum(functional.cross_entropy(one, label) for one in logits), optimizer)
