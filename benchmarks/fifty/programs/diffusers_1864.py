"""The average's decay for one step is kept as its setting, and so limits the decay of later steps.

https://github.com/huggingface/diffusers/issues/1864
held out again
"""

import copy

import torch
from common import FAULTY, Model, loss_on, optimize, tokens


class Average:
    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay, self.steps = decay, 0

    @torch.no_grad()
    def step(self, model):
        share = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        if FAULTY:
            self.decay = share
        for mean, now in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.sub_(share * (mean - now))


model, held = Model(), tokens(16, 17)
average = Average(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for number in range(24):
    optimize(loss_on(model, tokens(4, 17)), optimizer)
    average.step(model)
    if number % 6 == 5:
        with torch.no_grad():
            print(f"held {float(loss_on(average.model, held)):.6f}")
