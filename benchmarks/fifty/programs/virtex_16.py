"""The backbone is frozen but in training mode: its batch normalization uses and collects new statistics.

https://github.com/kdexd/virtex/issues/16
held out
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

backbone = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU())
with torch.no_grad():
    for _ in range(50):
        backbone(torch.randn(32, 8))
backbone.requires_grad_(False)
model = nn.Sequential(backbone, nn.Linear(32, 3))
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.03, momentum=0.9)
for _ in range(STEPS):
    model.train()
    if not FAULTY:
        backbone.eval()
    x = 1 + 2 * torch.randn(32, 8)
    label = (x[:, 0] > 0).long() + (x[:, 1] > 2).long()
    optimize(nn.functional.cross_entropy(model(x), label), optimizer)
