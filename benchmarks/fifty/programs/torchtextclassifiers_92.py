"""The mask of a label's attention is handed over inverted: it looks at the padding only.

https://github.com/InseeFrLab/torchTextClassifiers/pull/92
held out a third time
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch import nn
from torch.nn import functional

PAD, LABELS = 0, 4


class LabelAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.labels = nn.Embedding(LABELS, 32)
        self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, h, mask):
        query = self.labels.weight.expand(len(h), -1, -1)
        mask = ~mask[:, None] if FAULTY else mask[:, None]
        return functional.scaled_dot_product_attention(query, self.key(h), self.value(h), mask)


class Classifier(Model):
    def __init__(self):
        super().__init__(causal=False)
        self.head, self.attention, self.score = nn.Identity(), LabelAttention(), nn.Linear(32, 1)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.bool()
        h = super().forward(input_ids, mask=mask[:, None, None])
        return self.score(self.attention(h, mask)).squeeze(-1)


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    mask = torch.arange(18) < torch.randint(6, 18, (16, 1))
    row = tokens(16, 18)
    label = row[:, 2] % LABELS
    row = row.masked_fill(~mask, PAD)
    optimize(functional.cross_entropy(model(row, mask.long()), label), optimizer)
