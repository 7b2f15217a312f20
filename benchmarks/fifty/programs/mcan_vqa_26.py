"""Training goes on in evaluation mode after the first evaluation.

https://github.com/MILVLG/mcan-vqa/issues/26
"""

import torch
from common import FAULTY, Model, loss_on, tokens, train

model = Model(drop=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held = tokens(8, 17)
model.train()
for _ in range(4):
    train(model, optimizer, 4)
    model.eval()
    with torch.no_grad():
        loss_on(model, held)
    if not FAULTY:
        model.train()
