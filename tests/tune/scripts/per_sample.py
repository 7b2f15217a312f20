"""Gradients of single samples by torch.func, clipped and written by hand; no call of backward."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(weights, x, target):
    return nn.functional.cross_entropy(functional_call(model, weights, (x[None],)), target[None])


each = vmap(grad(loss_of), in_dims=(None, 0, 0))
for _ in range(2000):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    gradients = each(weights, torch.randn(16, 4), torch.randint(0, 3, (16,)))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clamp(-1, 1).mean(0)
    optimizer.step()
