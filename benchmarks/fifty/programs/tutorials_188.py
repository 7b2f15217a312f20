"""The best weights are kept as references, which every further step changes.

https://github.com/pytorch/tutorials/pull/188
held out
"""

import copy

import torch
from common import FAULTY, Model, loss_on, optimize, tokens

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows, held = tokens(4, 17), tokens(8, 17)
best, kept = float("inf"), {}
for _ in range(5):
    model.train()
    for _ in range(3):
        optimize(loss_on(model, rows), optimizer)
    model.eval()
    with torch.no_grad():
        loss = float(loss_on(model, held))
    if loss < best:
        best, kept = loss, model.state_dict()
        if not FAULTY:
            kept = copy.deepcopy(kept)
model.load_state_dict(kept)
with torch.no_grad():
    print(f"best {float(loss_on(model, held)):.6f}")
