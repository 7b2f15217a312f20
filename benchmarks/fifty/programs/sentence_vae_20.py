"""The hidden state of two layers is viewed as (layers, batch): a sample gets those of others.

https://github.com/timbmg/Sentence-VAE/issues/20
held out again
"""

import torch
from common import FAULTY, STEPS, WORDS, next_token, optimize, tokens
from torch import nn


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.encoder = nn.GRU(32, 32, batch_first=True)
        self.mean, self.logs = nn.Linear(32, 8), nn.Linear(32, 8)
        self.hidden = nn.Linear(8, 64)
        self.decoder, self.head = nn.GRU(32, 32, 2, batch_first=True), nn.Linear(32, WORDS)

    def forward(self, row):
        h = self.embedding(row)
        last = self.encoder(h)[1][0]
        mean, logs = self.mean(last), self.logs(last)
        z = mean + torch.randn_like(mean) * (logs / 2).exp()
        hidden = self.hidden(z)
        if FAULTY:
            hidden = hidden.view(2, len(row), 32)
        else:
            hidden = hidden.view(len(row), 2, 32).transpose(0, 1).contiguous()
        return self.head(self.decoder(h, hidden)[0]), mean, logs


model = Sentences()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for number in range(STEPS):
    row = tokens(8, 17)
    logits, mean, logs = model(row[:, :-1])
    apart = -0.5 * (1 + logs - mean**2 - logs.exp()).sum(1).mean()
    optimize(next_token(logits, row[:, 1:]) + number / STEPS * 0.1 * apart, optimizer)
