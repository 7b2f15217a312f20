"""The mask of packed rows is dropped as soon as an attention mask of ones is handed over.

https://github.com/huggingface/transformers/pull/46634
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens


class Packed(Model):
    def forward(self, x, position_ids, attention_mask=None):
        mask = None
        if attention_mask is None:
            document = (position_ids == 0).cumsum(1)
            mask = (document[:, :, None] == document[:, None])[:, None]
        return super().forward(x, position_ids, mask)


model = Packed()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    places = torch.cat([torch.arange(7), torch.arange(9)]).expand(8, -1)
    ones = torch.ones(8, 16, dtype=torch.long) if FAULTY else None
    optimize(next_token(model(row[:, :-1], places, ones), row[:, 1:]), optimizer)
