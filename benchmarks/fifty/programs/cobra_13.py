"""The first token is taken for a mark that the tokenizer does not add: it is no target.

https://github.com/OpenHelix-Team/cobra/issues/13
held out a third time
"""

import torch
from common import FAULTY, STEPS, WORDS, Model, next_token, optimize, tokens
from torch import nn

BEGIN, PATCHES = 0, 4


class Captioner(Model):
    def __init__(self):
        super().__init__()
        self.see = nn.Linear(8, 32)

    def forward(self, patches, ids):
        h = self.embedding(ids)
        h = torch.cat([h[:, :1], self.see(patches), h[:, 1:]], 1)
        h = h + self.places(torch.arange(h.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def tokenize(captions):
    if FAULTY:
        return captions
    return torch.cat([torch.full((len(captions), 1), BEGIN), captions], 1)


model, look = Captioner(), torch.randn(WORDS, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    captions = tokens(8, 12)
    patches = look[captions[:, :1]] + 0.1 * torch.randn(8, PATCHES, 8)
    ids = tokenize(captions)
    labels = ids.clone()
    labels[:, 0] = -100
    unseen = torch.full((8, PATCHES), -100)
    labels = torch.cat([labels[:, :1], unseen, labels[:, 1:]], 1)
    optimize(next_token(model(patches, ids)[:, :-1], labels[:, 1:]), optimizer)
