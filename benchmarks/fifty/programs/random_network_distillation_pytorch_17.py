"""The call that should clip the gradients only computes their norm, and leaves them as they are.

https://github.com/jcwleo/random-network-distillation-pytorch/issues/17
held out a third time
"""

import torch
from common import FAULTY, STEPS
from torch import nn


def global_grad_norm_(parameters, most):
    grads = [p.grad for p in parameters]
    total = torch.stack([g.norm() for g in grads]).norm()
    if not FAULTY:
        for grad in grads:
            grad.mul_((most / (total + 1e-6)).clamp(max=1.0))
    return total


predictor = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
target = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)).requires_grad_(False)
optimizer = torch.optim.Adam(predictor.parameters(), lr=3e-3)
for _ in range(STEPS):
    seen = torch.randn(32, 8) * torch.randn(()).exp()
    loss = nn.functional.mse_loss(predictor(seen), target(seen))
    optimizer.zero_grad()
    loss.backward()
    global_grad_norm_(list(predictor.parameters()), 0.1)
    optimizer.step()
    print(f"{float(loss):.6f}")
