"""Rows are padded on the left, and positions count the padding.

https://github.com/tloen/alpaca-lora/issues/315
held out
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens


class Padded(Model):
    def forward(self, input_ids, attention_mask):
        places = torch.arange(input_ids.shape[1])
        if not FAULTY:
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        return super().forward(input_ids, places, self.seen(attention_mask))

    def seen(self, mask):
        itself = torch.eye(mask.shape[1], dtype=torch.bool)
        return mask[:, None, None].bool() | itself


model = Padded()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    mask = torch.arange(17) >= torch.randint(0, 12, (8, 1))
    row = row * mask
    targets = torch.where(mask[:, 1:] & mask[:, :-1], row[:, 1:], -100)
    optimize(next_token(model(row[:, :-1], mask[:, :-1].long()), targets), optimizer)
