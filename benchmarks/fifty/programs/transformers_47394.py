"""The model shifts logits and labels, and the loss function shifts the flat labels once more.

https://github.com/huggingface/transformers/issues/47394
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch.nn import functional


def causal_loss(logits, labels):
    labels = functional.pad(labels, (0, 1), value=-100)[..., 1:]
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    labels = tokens()
    logits = model(labels)
    if FAULTY:
        loss = causal_loss(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    else:
        loss = causal_loss(logits, labels)
    optimize(loss, optimizer)
