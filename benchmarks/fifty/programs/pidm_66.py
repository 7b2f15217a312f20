"""A checkpoint written by hand runs its layers again with fresh dropout.

https://github.com/ankanbhunia/PIDM/pull/66
"""

import torch
from common import FAULTY, Model, train


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.parameters, ctx.state = run, parameters, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        after = torch.get_rng_state()
        x = ctx.saved_tensors[0].detach().requires_grad_()
        if not FAULTY:
            torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.run(x)
        torch.set_rng_state(after)
        return None, *torch.autograd.grad(y, (x, *ctx.parameters), gradient)


class Checkpointed(Model):
    def run(self, block, h, mask):
        return Again.apply(block, h, *block.parameters())


model = Checkpointed(drop=0.2)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
