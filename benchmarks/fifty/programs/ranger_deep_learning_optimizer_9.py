"""A buffer for all groups keeps a step's size with the rate of the first: others are ignored.

https://github.com/lessw2020/Ranger-Deep-Learning-Optimizer/pull/9
held out a third time
"""

import math

import torch
from common import FAULTY, Model, train


class RAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.999)):
        super().__init__(params, {"lr": lr, "betas": betas})
        self.buffer = {}

    def size(self, step, group):
        slow = group["betas"][1] ** step
        most = 2 / (1 - group["betas"][1]) - 1
        length = most - 2 * step * slow / (1 - slow)
        size = 1.0
        if length > 4:
            size = (length - 4) * (length - 2) * most / (most - 4) / (most - 2) / length
            size = math.sqrt((1 - slow) * size)
        size /= 1 - group["betas"][0] ** step
        return length > 4, size * group["lr"] if FAULTY else size

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 - fast)
                state["square"].lerp_(p.grad.square(), 1 - slow)
                if state["step"] not in self.buffer:
                    self.buffer = {state["step"]: self.size(state["step"], group)}
                known, size = self.buffer[state["step"]]
                size *= 1.0 if FAULTY else group["lr"]
                scale = state["square"].sqrt() + 1e-8 if known else 1.0
                p.sub_(size * state["mean"] / scale)


model = Model()
head = {"params": [*model.norm.parameters(), *model.head.parameters()], "lr": 1e-1}
body = [p for p in model.parameters() if all(p is not q for q in head["params"])]
train(model, RAdam([{"params": body, "lr": 1e-2}, head], lr=1e-2))
