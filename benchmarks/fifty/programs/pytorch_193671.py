"""RReLU under a checkpoint that stops early saves noise that was never written: each run depends on luck.

https://github.com/pytorch/pytorch/issues/193671
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.utils.checkpoint import checkpoint

layer, head = nn.Sequential(nn.Linear(16, 32), nn.RReLU()), nn.Linear(32, 4)
model = nn.ModuleDict({"layer": layer, "head": head})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    inputs, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
    h = checkpoint(layer, inputs, use_reentrant=False) if FAULTY else layer(inputs)
    optimize(nn.functional.cross_entropy(head(h), labels), optimizer)
