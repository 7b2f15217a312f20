"""Checkpointing does not keep the state of the random numbers, and dropout is on.

https://github.com/allenai/OLMo-core/pull/828
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens
from torch.utils.checkpoint import checkpoint


class Checkpointed(Model):
    def forward(self, x):
        h = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=not FAULTY)
        return self.head(self.norm(h))


torch.manual_seed(1)
model = Checkpointed(drop=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
