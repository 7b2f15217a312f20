"""A part is frozen after it was trained; the momentum and decay of old gradients still change it.

https://github.com/iamwangyabin/S-Prompts/pull/2
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
for step in range(STEPS):
    if step == 2:
        model.embedding.requires_grad_(False)
        if not FAULTY:
            model.embedding.weight.grad = None
    loss = loss_on(model, tokens(8, 17))
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    print(f"{float(loss):.6f}")
