"""Places begin again in each packed sample, but attention still crosses from one to the next.

https://github.com/huggingface/nanoVLM/pull/204
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens


class Packed(Model):
    def forward(self, x, position_ids, document_ids):
        mask = (document_ids[:, :, None] == document_ids[:, None])[:, None]
        return super().forward(x, position_ids, None if FAULTY else mask)


model = Packed()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    places = torch.cat([torch.arange(5), torch.arange(11)]).expand(8, -1)
    optimize(next_token(model(row[:, :-1], places, (places == 0).cumsum(1)), row[:, 1:]), optimizer)
