"""Hidden frequencies are not where the loss looks: it takes the intervals of hidden times for them.

https://github.com/czlwang/BrainBERT/pull/15
held out again
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn


def intervals(length, width):
    starts = torch.randint(0, length - width, (2,)).tolist()
    return [slice(start, start + width) for start in starts]


model = nn.Sequential(nn.Conv1d(16, 48, 9, padding=4), nn.GELU(), nn.Conv1d(48, 16, 9, padding=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
time, pitch = torch.arange(40.0), torch.arange(16.0)[:, None]
for _ in range(STEPS):
    phase = 6 * torch.rand(8, 1, 1)
    data = (phase + time / 4 + pitch / 3).sin() + 0.1 * torch.randn(8, 16, 40)
    hidden, counted = data.clone(), torch.zeros(16, 40, dtype=torch.bool)
    times, pitches = intervals(40, 5), intervals(16, 2)
    for span in times:
        hidden[:, :, span] = 0
        counted[:, span] = True
    for span in pitches:
        hidden[:, span] = 0
    for span in times if FAULTY else pitches:
        counted[span] = True
    optimize((model(hidden) - data).abs()[:, counted].mean(), optimizer)
