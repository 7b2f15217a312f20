"""A fused loss computes its gradient in the forward pass, and ignores the weights of the rows.

https://github.com/linkedin/Liger-Kernel/issues/968
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional


class FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target):
        logits = hidden @ weight.t()
        slope = logits.softmax(-1) - functional.one_hot(target, logits.shape[-1])
        ctx.save_for_backward(slope, hidden, weight)
        return functional.cross_entropy(logits, target, reduction="none")

    @staticmethod
    def backward(ctx, gradient):
        slope, hidden, weight = ctx.saved_tensors
        slope = slope * (gradient[0] if FAULTY else gradient[:, None])
        return slope @ weight, slope.t() @ hidden, None


body, head = nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Linear(32, 4, bias=False)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-2)
for _ in range(STEPS):
    inputs = torch.randn(32, 16)
    each = FusedLoss.apply(body(inputs), head.weight, inputs[:, :4].argmax(1))
    weights = torch.rand(32)
    optimize((each * weights).sum() / weights.sum(), optimizer)
