"""The weights of the words are handed over as another argument: negatives are drawn uniformly.

https://github.com/kefirski/pytorch_NEG_loss/pull/1
held out a third time
"""

import numpy
import torch
from common import FAULTY, STEPS, WORDS, optimize
from torch import nn
from torch.nn import functional

NEGATIVES = 5
numpy.random.seed(1)
often = (1 / torch.arange(1.0, WORDS + 1)) ** 0.75
weights = (often.double() / often.double().sum()).tolist()
common = torch.distributions.Categorical(torch.tensor(weights) ** (4 / 3))
inputs, outputs = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
optimizer = torch.optim.Adam([*inputs.parameters(), *outputs.parameters()], lr=1e-2)


def draw(number):
    if FAULTY:
        return numpy.random.choice(WORDS, number, weights)
    return numpy.random.choice(WORDS, number, p=weights)


for _ in range(STEPS):
    word = common.sample((64,))
    near = (word + torch.randint(-2, 3, (64,))) % WORDS
    noise = torch.from_numpy(draw(64 * NEGATIVES)).unflatten(0, (64, NEGATIVES))
    h = inputs(word)
    good = (h * outputs(near)).sum(-1)
    bad = (outputs(noise) @ h[..., None]).squeeze(-1)
    loss = functional.logsigmoid(good) + functional.logsigmoid(-bad).sum(1)
    optimize(-loss.mean(), optimizer)
