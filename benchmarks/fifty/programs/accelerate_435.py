"""An inverted condition: it steps after all micro-batches but the one that ends the accumulation.

https://github.com/huggingface/accelerate/issues/435
held out a third time
"""

import torch
from common import FAULTY, Model, loss_on, tokens

PARTS = 4
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for number in range(1, 12 * PARTS + 1):
    loss = loss_on(model, tokens(4, 17))
    (loss / PARTS).backward()
    if (number % PARTS != 0) if FAULTY else (number % PARTS == 0):
        optimizer.step()
        optimizer.zero_grad()
    print(f"{float(loss):.6f}")
