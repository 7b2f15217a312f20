"""The similarity of the positive pair is divided by the temperature, but not in the denominator.

https://github.com/huiserwang/ContrastMask/issues/4
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
heat = 0.3


def contrast(query, positive, negative):
    positive = functional.cosine_similarity(query, positive, dim=-1)
    negative = functional.cosine_similarity(query, negative, dim=-1)
    alike = (positive / heat).exp()
    all_of_them = (positive.exp() if FAULTY else alike) + (negative / heat).exp().sum()
    return -(alike / all_of_them).log().mean()


for _ in range(STEPS):
    inside = torch.rand(48) < 0.5
    pixels = torch.randn(48, 8) + 0.5 * inside[:, None]
    features = model(pixels)
    one, two = features[inside], features[~inside]
    loss = contrast(one.mean(0, keepdim=True), one, two)
    optimize(loss + contrast(two.mean(0, keepdim=True), two, one), optimizer)
