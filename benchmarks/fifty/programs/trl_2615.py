"""The preference loss is not divided by the accumulation steps, since the model takes loss arguments.

https://github.com/huggingface/trl/pull/2615
"""

import copy

import torch
from common import FAULTY, STEPS, Model, tokens
from torch.nn import functional


def score(model, row):
    logs = functional.log_softmax(model(row[:, :-1]), -1)
    return logs.gather(-1, row[:, 1:, None]).squeeze(-1).sum(1)


model, parts = Model(), 4
reference = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    optimizer.zero_grad()
    seen = 0.0
    for _ in range(parts):
        good, bad = tokens(2, 17), tokens(2, 17)
        with torch.no_grad():
            before = score(reference, good) - score(reference, bad)
        loss = -functional.logsigmoid(
            0.1 * (score(model, good) - score(model, bad) - before)
        ).mean()
        (loss if FAULTY else loss / parts).backward()
        seen += float(loss) / parts
    optimizer.step()
    print(f"{seen:.6f}")
