"""Norms are to be left out of the decay by their names, and this model has other names for them.

https://github.com/deepspeedai/DeepSpeedExamples/pull/755
held out
"""

import torch
from common import FAULTY, Model, train

model = Model()
spared = ["bias", "LayerNorm.weight"] if FAULTY else ["bias", "norm", "first", "second"]
decayed, others = [], []
for name, parameter in model.named_parameters():
    (others if any(part in name for part in spared) else decayed).append(parameter)
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
train(model, torch.optim.AdamW(groups, lr=1e-3))
