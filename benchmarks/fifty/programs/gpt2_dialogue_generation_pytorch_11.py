"""The kinds of the tokens, who speaks, are collected from the tokens themselves.

https://github.com/devjwsong/gpt2-dialogue-generation-pytorch/issues/11
held out a third time
"""

import torch
from common import FAULTY, Model, next_token, optimize, tokens
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

END, FIRST, SECOND = 0, 38, 39


def dialogue():
    length = int(torch.randint(8, 17, ()))
    ids, turn = tokens(1, length)[0] % 37 + 1, int(torch.randint(3, length - 2, ()))
    kinds = torch.where(torch.arange(length) < turn, FIRST, SECOND)
    return ids, kinds, ids.masked_fill(kinds == FIRST, -100)


def collate(rows):
    ids = pad_sequence([row[0] for row in rows], True, END)
    kinds = pad_sequence([row[0 if FAULTY else 1] for row in rows], True, END)
    labels = pad_sequence([row[2] for row in rows], True, -100)
    return ids, kinds, labels


class Speaker(Model):
    def forward(self, ids, kinds):
        h = self.embedding(ids) + self.embedding(kinds) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


model = Speaker()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader([dialogue() for _ in range(48)], 8, shuffle=True, collate_fn=collate)
for _ in range(3):
    for ids, kinds, labels in loader:
        optimize(next_token(model(ids, kinds)[:, :-1], labels[:, 1:]), optimizer)
