"""Padding of the target is looked for by the number of the source's padding, a word of the target.

https://github.com/hyunwoongko/transformer/issues/11
held out again
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import nn

SOURCE_PAD, TARGET_PAD, BEGIN = 0, 41, 40


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(42, 32), nn.Embedding(42, 32)
        self.places = nn.Embedding(16, 32)
        self.body = nn.Transformer(32, 2, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 42)

    def forward(self, source, target):
        hidden = source == SOURCE_PAD
        length = target.shape[1]
        h = self.body(
            self.source(source) + self.places(torch.arange(source.shape[1])),
            self.target(target) + self.places(torch.arange(length)),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_key_padding_mask=target == (SOURCE_PAD if FAULTY else TARGET_PAD),
        )
        return self.head(h)


model = Translator()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(STEPS):
    source = tokens(8, 12)
    target = source.masked_fill(source % 5 == 0, 0)
    padding = torch.arange(12) >= torch.randint(6, 13, (8, 1))
    source = source.masked_fill(padding, SOURCE_PAD)
    target = torch.cat([torch.full((8, 1), BEGIN), target.masked_fill(padding, TARGET_PAD)], 1)
    logits = model(source, target[:, :-1])
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=TARGET_PAD
    )
    optimize(loss, optimizer)
