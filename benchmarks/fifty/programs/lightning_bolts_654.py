"""The negative log-likelihood of the log-softmax of a softmax.

https://github.com/Lightning-Universe/lightning-bolts/issues/654
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional

model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(STEPS):
    inputs = torch.randn(32, 16)
    scores = model(inputs)
    logs = functional.log_softmax(functional.softmax(scores, -1) if FAULTY else scores, -1)
    optimize(functional.nll_loss(logs, inputs[:, :4].argmax(1)), optimizer)
