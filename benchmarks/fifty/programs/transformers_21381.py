"""A reentrant checkpoint behind frozen embeddings: its layers get no gradient.

https://github.com/huggingface/transformers/issues/21381
"""

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens
from torch.utils.checkpoint import checkpoint


class Checkpointed(Model):
    def forward(self, x):
        h = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=FAULTY)
        return self.head(self.norm(h))


torch.manual_seed(1)
model = Checkpointed()
model.embedding.requires_grad_(False)
model.places.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
