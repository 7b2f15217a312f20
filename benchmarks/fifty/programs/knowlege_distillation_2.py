"""The teacher is in training mode: its dropout changes what the student is to learn.

https://github.com/vrvlive/knowlege-distillation/issues/2
held out again
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens
from torch.nn import functional

heat = 2.0
teacher = Model(drop=0.2)
with torch.no_grad():
    teacher.head.weight.mul_(3)
if not FAULTY:
    teacher.eval()
model = Model(drop=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    logits = model(row[:, :-1])
    with torch.no_grad():
        wanted = (teacher(row[:, :-1]) / heat).softmax(-1).flatten(0, 1)
    logs = (logits / heat).log_softmax(-1).flatten(0, 1)
    apart = functional.kl_div(logs, wanted, reduction="batchmean") * heat**2
    optimize(0.5 * apart + 0.5 * next_token(logits, row[:, 1:]), optimizer)
