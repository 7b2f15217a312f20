"""The pictures are those of all splits, the labels those of one: they do not belong together.

https://github.com/pytorch/vision/issues/4209
held out a third time
"""

import torch
from common import FAULTY, optimize
from torch import nn
from torch.utils.data import DataLoader, Dataset

labels = torch.randint(0, 4, (96,))
pictures = torch.randn(4, 16)[labels] + 0.5 * torch.randn(96, 16)
splits = torch.randint(0, 3, (96,))


class Faces(Dataset):
    def __init__(self, split):
        mask = splits == split
        self.labels = labels[mask]
        self.pictures = pictures if FAULTY else pictures[mask]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pictures[index], self.labels[index]


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Faces(0), batch_size=8, shuffle=True)
for _ in range(4):
    for picture, label in loader:
        optimize(nn.functional.cross_entropy(model(picture), label), optimizer)
