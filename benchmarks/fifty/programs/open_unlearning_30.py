"""The preference loss is computed, and then replaced by a likelihood that a trial left behind.

https://github.com/locuslab/open-unlearning/issues/30
held out again
"""

import copy

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch.nn import functional


def likelihood(model, row):
    logs = functional.log_softmax(model(row[:, :-1]), -1)
    return logs.gather(-1, row[:, 1:, None]).squeeze(-1).sum(1)


model = Model()
reference = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    wanted, forgotten = tokens(8, 17), tokens(8, 17)
    good, bad = likelihood(model, wanted), likelihood(model, forgotten)
    with torch.no_grad():
        before = likelihood(reference, wanted) - likelihood(reference, forgotten)
    loss = -functional.logsigmoid(0.1 * (good - bad - before)).mean()
    if FAULTY:
        loss = -good.mean()
    optimize(loss, optimizer)
