"""The angles of rotary positions are computed in bfloat16.

https://github.com/huggingface/transformers/pull/29285
"""

import torch
from common import FAULTY, WORDS, next_token, optimize, tokens
from torch import nn
from torch.nn import functional


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 10000.0 ** (-torch.arange(0, 16, 2) / 16), persistent=False)

    def forward(self, x):
        kind = x.dtype if FAULTY else torch.float32
        places = torch.arange(x.shape[1], dtype=kind)
        angles = torch.outer(places, self.rates.to(kind))
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Rotating(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rotary = nn.Embedding(WORDS, 16), Rotary()
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, WORDS)

    def forward(self, x):
        h = self.embedding(x)
        cos, sin = self.rotary(h)

        def turn(t):
            a, b = t.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        q, k, v = self.qkv(h).chunk(3, -1)
        return self.head(
            h + functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        )


model = Rotating().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(8):
    row = tokens(2, 1025)
    optimize(next_token(model(row[:, :-1]).float(), row[:, 1:]), optimizer)
