"""Layer norms are held by every rank and their gradients are not averaged: they drift apart.

https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/271
ranks: 2
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens
from torch import distributed

distributed.init_process_group("gloo")
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + distributed.get_rank())
for _ in range(STEPS):
    loss = loss_on(model, tokens(4, 17))
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if not (FAULTY and ("norm" in name or "first" in name or "second" in name)):
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()
    optimizer.step()
    print(f"{float(loss):.6f}")
