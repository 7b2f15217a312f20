"""The loss of a model that takes no count of targets is not divided by the accumulation steps.

https://github.com/huggingface/transformers/issues/37766
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model, parts = Model(), 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    optimizer.zero_grad()
    seen = 0.0
    for _ in range(parts):
        loss = loss_on(model, tokens(2, 17))
        (loss if FAULTY else loss / parts).backward()
        seen += float(loss) / parts
    optimizer.step()
    print(f"{seen:.6f}")
