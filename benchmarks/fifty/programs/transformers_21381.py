"""A reentrant checkpoint behind frozen embeddings: its layers get no gradient.

https://github.com/huggingface/transformers/issues/21381
"""

import torch
from common import FAULTY, Model, train
from torch.utils.checkpoint import checkpoint


class Checkpointed(Model):
    def run(self, block, h, mask):
        return checkpoint(block, h, use_reentrant=FAULTY)


model = Checkpointed()
model.embedding.requires_grad_(False)
model.places.requires_grad_(False)
train(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3))
