"""The loss of the boxes is divided by the places for objects instead of the objects.

https://github.com/lzccccc/SMOKE/issues/16
held out again
"""

import torch
from common import FAULTY, STEPS, TwoHeads, optimize
from torch import nn
from torch.nn import functional

PLACES = 30

model = TwoHeads(16, nn.ReLU, 1, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mix = torch.randn(5, 16)
for _ in range(STEPS):
    objects = torch.randint(1, 12, (8, 1))
    mask = (torch.arange(PLACES) < objects).float()
    boxes = torch.rand(8, PLACES, 4) * mask[..., None]
    seen = torch.cat([mask[..., None], boxes], -1) @ mix + 0.1 * torch.randn(8, PLACES, 16)
    present, box = model(seen)
    apart = functional.l1_loss(box * mask[..., None], boxes, reduction="sum")
    apart = apart / (PLACES if FAULTY else mask.sum())
    optimize(
        functional.binary_cross_entropy_with_logits(present.squeeze(-1), mask) + apart, optimizer
    )
