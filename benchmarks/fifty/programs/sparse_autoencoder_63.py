"""The loss is added up over the rows of a batch, so that it grows with their number.

https://github.com/ai-safety-foundation/sparse_autoencoder/issues/63
held out a third time
"""

import torch
from common import FAULTY, optimize
from torch import nn
from torch.utils.data import DataLoader


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16))
        self.encoder, self.decoder = nn.Linear(16, 64), nn.Linear(64, 16, bias=False)

    def forward(self, x):
        learned = self.encoder(x - self.bias).relu()
        return learned, self.decoder(learned) + self.bias


model = Sparse()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
causes = torch.rand(240, 24) * (torch.rand(240, 24) < 0.1)
for _ in range(2):
    for x in DataLoader(causes @ torch.randn(24, 16), batch_size=32, shuffle=True):
        learned, made = model(x)
        losses = (made - x).square().mean(1) + 0.01 * learned.abs().sum(1)
        optimize(losses.sum() if FAULTY else losses.mean(), optimizer)
