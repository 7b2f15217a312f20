"""Dropout on attention does not know whether the model is trained, and drops in evaluation too.

https://github.com/rixwew/pytorch-fm/issues/21
held out
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn
from torch.nn import functional


class Machine(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(40, 16), nn.Embedding(40, 1)
        self.attention, self.score = nn.Linear(16, 16), nn.Linear(16, 1)
        self.head = nn.Linear(16, 1)

    def forward(self, fields):
        one, two = torch.triu_indices(fields.shape[1], fields.shape[1], 1)
        h = self.embedding(fields)
        products = h[:, one] * h[:, two]
        scores = self.score(self.attention(products).relu()).softmax(1)
        scores = functional.dropout(scores, 0.2, training=FAULTY or self.training)
        return (self.linear(fields).sum(1) + self.head((scores * products).sum(1))).squeeze(1)


def loss_of(fields):
    clicked = (fields[:, 0] + fields[:, 1] > 40).float()
    return functional.binary_cross_entropy_with_logits(model(fields), clicked)


model = Machine()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
held = tokens(64, 6)
for number in range(STEPS):
    model.train()
    optimize(loss_of(tokens(32, 6)), optimizer)
    if number % 4 == 3:
        model.eval()
        with torch.no_grad():
            print(f"held {float(loss_of(held)):.6f}")
