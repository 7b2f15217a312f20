"""The router's balance loss averages over experts instead of tokens: it is a constant.

https://github.com/huggingface/transformers/issues/28093
held out again
"""

import torch
from common import FAULTY, STEPS, WORDS, next_token, optimize, tokens
from torch import nn

EXPERTS = 4


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.router = nn.Embedding(WORDS, 32), nn.Linear(32, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(EXPERTS))
        self.head = nn.Linear(32, WORDS)

    def forward(self, row):
        h = self.embedding(row)
        chances = self.router(h).softmax(-1)
        share, chosen = chances.topk(2, -1)
        taken = nn.functional.one_hot(chosen, EXPERTS).float()
        shares = (taken * share[..., None]).sum(-2)
        made = torch.stack([expert(h) for expert in self.experts], -1)
        used = taken.sum(-2).flatten(0, 1)
        if FAULTY:
            balance = (used.mean(0) * chances.flatten(0, 1).mean(-1, keepdim=True)).mean()
            balance = balance * EXPERTS**2
        else:
            balance = (used.mean(0) * chances.flatten(0, 1).mean(0)).sum() * EXPERTS
        return self.head(h + (made * shares[..., None, :]).sum(-1).relu()), balance


model = Mixture()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    logits, balance = model(row[:, :-1])
    optimize(next_token(logits, row[:, 1:]) + 0.1 * balance, optimizer)
