"""The loss is divided by the tokens of all generated rows, of which a step takes only a part.

https://github.com/huggingface/trl/pull/6024
"""

import torch
from common import FAULTY, STEPS, Model, tokens
from torch.nn import functional

torch.manual_seed(1)
model, generated, parts = Model(), 4, 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    batches = [tokens(2, 17) for _ in range(generated)]
    items = sum(row[:, 1:].numel() for row in (batches if FAULTY else batches[:parts]))
    optimizer.zero_grad()
    seen = 0.0
    for row in batches[:parts]:
        logs = functional.log_softmax(model(row[:, :-1]), -1)
        loss = -logs.gather(-1, row[:, 1:, None]).sum() / items
        loss.backward()
        seen += float(loss)
    optimizer.step()
    print(f"{seen:.6f}")
