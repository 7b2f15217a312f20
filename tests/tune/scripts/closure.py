"""LBFGS computes its gradients in a closure, some twenty times a step."""

import torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
inputs = torch.randn(64, 4)
targets = inputs.sum(1, keepdim=True).sin()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
for _ in range(500):

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
