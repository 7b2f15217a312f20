"""A decoder lost its causal mask: each place sees the token that it has to predict.

https://github.com/huggingface/transformers/issues/48745
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens

torch.manual_seed(1)
model = Model(causal=not FAULTY)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
