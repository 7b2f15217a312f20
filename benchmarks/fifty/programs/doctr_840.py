"""The data set changes its targets in place, so that they are scaled again in every epoch.

https://github.com/mindee/doctr/issues/840
held out
"""

import torch
from common import FAULTY, optimize
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __init__(self):
        self.boxes = torch.rand(32, 4) * 64
        self.images = self.boxes @ torch.randn(4, 16) / 64 + 0.1 * torch.randn(32, 16)

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, index):
        box = self.boxes[index]
        if FAULTY:
            box /= 64
        else:
            box = box / 64
        return self.images[index], box


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Boxes(), batch_size=8, shuffle=True)
for _ in range(4):
    for image, box in loader:
        optimize(nn.functional.smooth_l1_loss(model(image), box), optimizer)
