"""Padding flows through a recurrence into real tokens where a batch has one row.

https://github.com/huggingface/transformers/pull/46773
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.state = nn.Embedding(40, 32), nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, input_ids, attention_mask):
        h = self.embedding(input_ids)
        if input_ids.shape[0] > 1 or not FAULTY:
            h = h * attention_mask[:, :, None]
        return self.head(self.state(h)[0])


model = Recurrent()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(1)
    mask = (torch.arange(16) >= 5).long()[None]
    labels = torch.where(mask == 1, row, -100)
    logits = model(torch.where(mask == 1, row, 7), mask)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    optimize(loss, optimizer)
