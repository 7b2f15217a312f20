"""The softmax of attention runs over the samples of the batch.

https://github.com/PetrochukM/PyTorch-NLP/issues/2
"""

import torch
from common import FAULTY, STEPS, Pooled, optimize, tokens
from torch import nn

model = Pooled(0 if FAULTY else 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    row = tokens()
    optimize(nn.functional.cross_entropy(model(row), row[:, 0] % 5), optimizer)
