"""The divergence from the teacher is averaged over the classes instead of added up.

https://github.com/HikariTJU/LD/issues/74
held out
"""

import copy

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens
from torch.nn import functional

model, heat = Model(), 2.0
teacher = copy.deepcopy(model).requires_grad_(False).eval()
teacher.head.weight.mul_(3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    logits = model(row[:, :-1])
    with torch.no_grad():
        wanted = (teacher(row[:, :-1]) / heat).softmax(-1)
    apart = functional.kl_div((logits / heat).log_softmax(-1), wanted, reduction="none")
    apart = apart.mean(-1) if FAULTY else apart.sum(-1)
    optimize(next_token(logits, row[:, 1:]) + apart.mean() * heat**2, optimizer)
