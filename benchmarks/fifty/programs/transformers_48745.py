"""A decoder lost its causal mask: each place sees the token that it has to predict.

https://github.com/huggingface/transformers/issues/48745
"""

import torch
from common import FAULTY, Model, train

model = Model(causal=not FAULTY)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
