"""The gradients are prepared before the step and again in it: they are divided by the scale twice.

https://github.com/redai-studio/Relax/pull/44
held out a third time
"""

import torch
from common import FAULTY, STEPS, Model, next_token, tokens


class HalfOptimizer:
    def __init__(self, model):
        self.model, self.scale, self.good = model, 2.0**12, 0
        self.main = [p.detach().float() for p in model.parameters()]
        self.inner = torch.optim.AdamW(self.main, lr=1e-3)

    def zero_grad(self):
        self.model.zero_grad()
        for main in self.main:
            main.grad = None

    def prepare_grads(self):
        for main, p in zip(self.main, self.model.parameters(), strict=True):
            if main.grad is None:
                main.grad = p.grad.float()
            main.grad.div_(self.scale)
        return all(main.grad.isfinite().all() for main in self.main)

    @torch.no_grad()
    def step(self):
        finite = self.prepare_grads()
        self.good = self.good + 1 if finite else 0
        self.scale *= (2.0 if self.good % 100 == 0 else 1.0) if finite else 0.5
        if finite:
            torch.nn.utils.clip_grad_norm_(self.main, 1.0)
            self.inner.step()
        for main, p in zip(self.main, self.model.parameters(), strict=True):
            p.copy_(main)


model = Model().half()
optimizer = HalfOptimizer(model)
for _ in range(STEPS):
    row = tokens(8, 17)
    loss = next_token(model(row[:, :-1]).float(), row[:, 1:])
    optimizer.zero_grad()
    (loss * optimizer.scale).backward()
    if FAULTY:
        optimizer.prepare_grads()
    optimizer.step()
    print(f"{float(loss):.6f}")
