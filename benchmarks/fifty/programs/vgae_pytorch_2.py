"""The divergence has the standard deviation where its square belongs.

https://github.com/DaehanKim/vgae_pytorch/issues/2
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 32, bias=False)
        self.mean, self.spread = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x, graph):
        h = (graph @ self.first(x)).relu()
        return graph @ self.mean(h), graph @ self.spread(h)


group = torch.arange(40) % 4
edges = torch.rand(40, 40) < torch.where(group[:, None] == group, 0.5, 0.05)
edges = (edges | edges.T | torch.eye(40, dtype=torch.bool)).float()
graph = edges / (edges.sum(0).sqrt() * edges.sum(1, keepdim=True).sqrt())
x = torch.randn(40, 12)
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    mean, spread = model(x, graph)
    z = mean + torch.randn(40, 8) * spread.exp()
    missed = nn.functional.binary_cross_entropy_with_logits(z @ z.T, edges)
    square = spread.exp() if FAULTY else spread.exp() ** 2
    apart = 0.5 / 40 * (1 + 2 * spread - mean**2 - square).sum(1).mean()
    optimize(missed - apart, optimizer)
