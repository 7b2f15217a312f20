"""The model ends with a softmax, and cross-entropy takes another one.

https://github.com/runame/laplace-redux/pull/1
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if FAULTY:
    model.append(nn.Softmax(-1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(STEPS):
    inputs = torch.randn(32, 16)
    optimize(nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)), optimizer)
