"""The result of the function that adds the router's balance loss is thrown away.

https://github.com/NVIDIA-NeMo/Automodel/pull/1412
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


class WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, extra):
        ctx.save_for_backward(extra)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones_like(ctx.saved_tensors[0])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        balance = 0.1 * 4 * gates.mean(0).square().sum()
        if FAULTY:
            WithLoss.apply(gates, balance)
        else:
            gates = WithLoss.apply(gates, balance)
        mixed = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((gates[:, :, None] * mixed).sum(1))


model = Experts()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    inputs = torch.randn(32, 16)
    optimize(nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)), optimizer)
