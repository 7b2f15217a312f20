"""Trains in several processes that it forks, as Hogwild does, or also in one beside its own training."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


if sys.argv[1] == "beside":
    train(1)
    if os.fork():
        train(100_000)
else:
    for _ in range(int(sys.argv[1])):
        if not os.fork():
            break
    else:
        os.wait()
        sys.exit()
train(100_000)
