"""All fields of a sample are normalized together instead of each by itself.

https://github.com/reczoo/FuxiCTR/issues/23
held out a third time
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

FIELDS, VALUES, WIDTH = 5, 10, 8


class MaskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(FIELDS * VALUES, WIDTH)
        if FAULTY:
            self.norm = nn.LayerNorm([FIELDS, WIDTH])
        else:
            self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(FIELDS))
        wide = FIELDS * WIDTH
        self.mask = nn.Sequential(nn.Linear(wide, 32), nn.ReLU(), nn.Linear(32, wide))
        self.hidden = nn.Sequential(nn.Linear(wide, 16), nn.LayerNorm(16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, row):
        fields = self.embedding(row + VALUES * torch.arange(FIELDS))
        if FAULTY:
            normed = self.norm(fields).flatten(1)
        else:
            normed = torch.cat([norm(fields[:, n]) for n, norm in enumerate(self.norm)], 1)
        return self.head(self.hidden(normed * self.mask(fields.flatten(1)))).squeeze(1)


model = MaskNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    row = torch.randint(0, VALUES, (64, FIELDS))
    clicked = (row[:, 0] + row[:, 1] > row[:, 2] + 5).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(row), clicked)
    optimize(loss, optimizer)
