"""The head reads the first token it gets, and gets the row without the one that stands for it all.

https://github.com/deepmodeling/Uni-Mol/issues/293
held out a third time
"""

import torch
from common import FAULTY, STEPS, WORDS, Model, optimize
from torch import nn

CLS = 0


class ClassificationHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.out = nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, features):
        return self.out(self.dense(features[:, 0]).tanh())


class Molecule(Model):
    def __init__(self):
        super().__init__(causal=False)
        self.head, self.classify = nn.Identity(), ClassificationHead()

    def forward(self, atoms):
        h = super().forward(torch.cat([torch.full((len(atoms), 1), CLS), atoms], 1))
        return self.classify(h[:, 1:] if FAULTY else h)


model = Molecule()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    atoms = torch.randint(1, WORDS, (16, 12))
    label = (atoms.float().mean(1) > WORDS / 2).long()
    optimize(nn.functional.cross_entropy(model(atoms), label), optimizer)
