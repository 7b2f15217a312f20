"""The validation loss is computed in training mode, with dropout.

https://github.com/lucidrains/DALLE2-pytorch/pull/79
"""

import torch
from common import FAULTY, Model, loss_on, tokens, train

model = Model(drop=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held = tokens(8, 17)
for _ in range(4):
    train(model, optimizer, 4)
    if not FAULTY:
        model.eval()
    with torch.no_grad():
        loss_on(model, held)
    model.train()
