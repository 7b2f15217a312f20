"""Checkpointing does not keep the state of the random numbers, and dropout is on.

https://github.com/allenai/OLMo-core/pull/828
"""

import torch
from common import FAULTY, Model, train
from torch.utils.checkpoint import checkpoint


class Checkpointed(Model):
    def run(self, block, h, mask):
        return checkpoint(block, h, use_reentrant=False, preserve_rng_state=not FAULTY)


model = Checkpointed(drop=0.2)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
