"""A handwritten cross-entropy that takes the labels first gets the logits first.

https://github.com/isaaccorley/detcon-pytorch/issues/1
held out a third time
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def cross_entropy(labels, logits, weight):
    return -(weight * (labels * logits.log_softmax(-1)).sum(-1)).mean()


def detcon(one, two, valid):
    logits = functional.normalize(one, dim=-1) @ functional.normalize(two, dim=-1).T / 0.1
    labels = torch.eye(len(one))
    if FAULTY:
        return cross_entropy(logits, labels, valid)
    return cross_entropy(labels, logits, valid)


for _ in range(STEPS):
    objects = torch.randn(32, 16)
    valid = (torch.rand(32) < 0.8).float()
    views = [model(objects + 0.3 * torch.randn(32, 16)) for _ in range(2)]
    optimize(detcon(*views, valid) + detcon(*views[::-1], valid), optimizer)
