"""Logits and labels are shifted in the model and again in the loss: the token after the next.

https://github.com/huggingface/transformers/pull/37830
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch.nn import functional


class Shifting(Model):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        if FAULTY:
            logits, labels = logits[:, :-1], labels[:, 1:]
        logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


model = Shifting()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens()
    optimize(model(row, labels=row), optimizer)
