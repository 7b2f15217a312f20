"""The exponents of the positions' waves are twice as large, and differ between sine and cosine.

https://github.com/SamLynnEvans/Transformer/issues/25
held out again
"""

import math

import torch
from common import FAULTY, Model, train
from torch import nn


class Waves(nn.Module):
    def __init__(self, length=64, width=32):
        super().__init__()
        waves = torch.zeros(length, width)
        for place in range(length):
            for i in range(0, width, 2):
                one, two = (2 * i, 2 * (i + 1)) if FAULTY else (i, i)
                waves[place, i] = math.sin(place / 10000 ** (one / width))
                waves[place, i + 1] = math.cos(place / 10000 ** (two / width))
        self.register_buffer("waves", waves)

    def forward(self, positions):
        return self.waves[positions]


model = Model()
model.places = Waves()
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
