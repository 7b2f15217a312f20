"""The small weight of the commitment is on the loss of the code book, and the other way round.

https://github.com/karpathy/deep-vector-quantization/issues/2
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.codes = nn.Embedding(16, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        z = self.encoder(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(-1))
        moved, stayed = (code - z.detach()).square().mean(), (code.detach() - z).square().mean()
        apart = 0.25 * moved + stayed if FAULTY else moved + 0.25 * stayed
        return self.decoder(z + (code - z).detach()), apart


model = Quantized()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
mix = torch.randn(3, 16)
for _ in range(STEPS):
    x = torch.randn(64, 3).sign() @ mix + 0.1 * torch.randn(64, 16)
    made, apart = model(x)
    optimize(functional.mse_loss(made, x) + 10 * apart, optimizer)
