"""Adam decays the weights themselves, as AdamW does, instead of adding the decay to the gradient.

https://github.com/flagos-ai/FlagGems/issues/4988
"""

import torch
from common import FAULTY, Model, train


class Adam(torch.optim.Optimizer):
    def __init__(self, parameters, lr, weight_decay):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state |= {"n": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                if FAULTY:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                else:
                    g = g + group["weight_decay"] * p
                state["n"] += 1
                state["m"].lerp_(g, 0.1)
                state["v"].lerp_(g * g, 0.001)
                m, v = state["m"] / (1 - 0.9 ** state["n"]), state["v"] / (1 - 0.999 ** state["n"])
                p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


model = Model()
train(model, Adam(model.parameters(), lr=1e-3, weight_decay=0.1))
