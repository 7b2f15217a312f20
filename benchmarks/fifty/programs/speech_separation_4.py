"""Channels and times are exchanged by a view, which mixes the values of all of them.

https://github.com/vitrioil/Speech-Separation/issues/4
held out
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


class Separator(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.memory = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 8)

    def forward(self, sound):
        h = self.outer(self.inner(sound[:, None]).relu()).relu()
        rows, _, times, _ = h.shape
        h = h.view(rows, times, -1) if FAULTY else h.permute(0, 2, 1, 3).reshape(rows, times, -1)
        return self.head(self.memory(h)[0]).sigmoid()


model = Separator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    voice, noise = torch.randn(8, 12, 8).abs().cumsum(1) / 4, torch.rand(8, 12, 8)
    optimize(nn.functional.mse_loss(model(voice + noise) * (voice + noise), voice), optimizer)
