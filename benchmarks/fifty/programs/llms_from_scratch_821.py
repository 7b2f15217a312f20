"""The product of the low-rank matrices is multiplied by alpha instead of alpha / rank.

https://github.com/rasbt/LLMs-from-scratch/issues/821
held out
"""

import torch
from common import FAULTY, Model, train
from torch import nn


class LowRank(nn.Module):
    def __init__(self, linear, rank=8, alpha=16):
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(linear.in_features, rank) / rank)
        self.b = nn.Parameter(torch.zeros(rank, linear.out_features))
        self.scale = alpha if FAULTY else alpha / rank

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.a @ self.b)


model = Model().requires_grad_(False)
for block in model.blocks:
    block.inner, block.outer = LowRank(block.inner), LowRank(block.outer)
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
train(model, torch.optim.AdamW(parameters, lr=1e-3))
