"""A loss that is already divided by the tokens of the whole step is divided by its parts once more.

https://github.com/modelscope/ms-swift/issues/10117
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens

torch.manual_seed(1)
model, parts = Model(), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    batches = [tokens(2, 17) for _ in range(parts)]
    items = sum(row[:, 1:].numel() for row in batches)
    optimizer.zero_grad()
    seen = 0.0
    for row in batches:
        loss = next_token(model(row[:, :-1]), row[:, 1:], "sum") / items
        (loss / parts if FAULTY else loss).backward()
        seen += float(loss)
    optimizer.step()
    print(f"{seen:.6f}")
