"""Training goes on in evaluation mode after the first evaluation.

https://github.com/MILVLG/mcan-vqa/issues/26
"""

import torch
from common import FAULTY, Model, next_token, optimize, tokens

torch.manual_seed(1)
model = Model(drop=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held = tokens(8, 17)
model.train()
for _ in range(4):
    for _ in range(4):
        row = tokens(8, 17)
        optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
    model.eval()
    with torch.no_grad():
        next_token(model(held[:, :-1]), held[:, 1:])
    if not FAULTY:
        model.train()
