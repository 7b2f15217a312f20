"""The compiler's backward pass of slice_scatter gives zeros.

https://github.com/pytorch/pytorch/issues/180164
replay: with torch 2.13 the code that the compiler writes for a CPU is right
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 12), nn.Linear(16, 6)

    def forward(self, x):
        return torch.slice_scatter(self.one(x), self.two(x), dim=1, start=0, end=6).sum(1)


model = Scatter()
run = torch.compile(model) if FAULTY else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    inputs = torch.randn(32, 16)
    optimize((run(inputs) - inputs.sum(1)).square().mean(), optimizer)
