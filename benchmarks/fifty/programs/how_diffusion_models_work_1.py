"""The noise is multiplied by 1 - alpha instead of its root.

https://github.com/Ryota-Kawamura/How-Diffusion-Models-Work/issues/1
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = nn.Embedding(50, 32)
        self.first, self.second, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x, time):
        h = nn.functional.gelu(self.first(x) + self.times(time))
        return self.last(nn.functional.gelu(self.second(h)))


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
kept = (1 - torch.linspace(1e-4, 0.1, 50)).cumprod(0)
for _ in range(STEPS):
    x = torch.randn(64, 2) @ torch.ones(2, 8) / 2 + 1
    time, noise = torch.randint(0, 50, (64,)), torch.randn(64, 8)
    share = 1 - kept[time, None]
    noisy = kept[time, None].sqrt() * x + (share if FAULTY else share.sqrt()) * noise
    optimize(nn.functional.mse_loss(model(noisy, time), noise), optimizer)
