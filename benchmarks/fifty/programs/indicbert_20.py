"""An encoder does not use its attention mask: real tokens change with the padding beside them.

https://github.com/AI4Bharat/IndicBERT/issues/20
"""

import torch
from common import FAULTY, STEPS, Block, optimize, tokens
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block = nn.Embedding(40, 32), Block(causal=False)
        self.head = nn.Linear(32, 5)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[:, None, None].bool()
        h = self.block(self.embedding(input_ids), None if FAULTY else mask)
        return self.head(h)


model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens()
    mask = (torch.arange(16) < torch.randint(4, 16, (8, 1))).long()
    labels = torch.where(mask == 1, row % 5, -100)
    logits = model(row * mask, mask)
    optimize(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), optimizer)
