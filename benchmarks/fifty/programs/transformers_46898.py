"""The decoder's input is shifted right, and the loss shifts the labels left besides.

https://github.com/huggingface/transformers/pull/46898
"""

import torch
from common import FAULTY, STEPS, Block, optimize, tokens
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(40, 32), Block(), nn.Linear(32, 40)

    def forward(self, labels):
        inputs = functional.pad(labels, (1, 0), value=0)[:, :-1]
        logits = self.head(self.block(self.embedding(inputs)))
        if FAULTY:
            labels = functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    optimize(model(tokens())[0], optimizer)
