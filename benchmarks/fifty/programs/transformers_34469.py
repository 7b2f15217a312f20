"""An adapter loaded into a model in evaluation mode is in training mode, and drops inputs.

https://github.com/huggingface/transformers/issues/34469
held out again
"""

import copy

import torch
from common import FAULTY, STEPS, Model, loss_on, optimize, tokens
from torch import nn


class LowRank(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear, self.drop = linear, nn.Dropout(0.3)
        self.a = nn.Parameter(torch.randn(linear.in_features, rank) / rank)
        self.b = nn.Parameter(torch.zeros(rank, linear.out_features))

    def forward(self, x):
        return self.linear(x) + 2 * (self.drop(x) @ self.a @ self.b)


def adapted(model):
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.inner, block.outer = LowRank(block.inner), LowRank(block.outer)
    return model


base = Model().requires_grad_(False).eval()
model, held = adapted(base).train(), tokens(16, 17)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-2)
for number in range(STEPS):
    optimize(loss_on(model, tokens(8, 17)), optimizer)
    if number % 4 == 3:
        names = {name for name, tensor in model.named_parameters() if tensor.requires_grad}
        adapter = {name: model.state_dict()[name] for name in names}
        tested = adapted(base)
        tested.load_state_dict(adapter, strict=False)
        if not FAULTY:
            tested.eval()
        with torch.no_grad():
            print(f"held {float(loss_on(tested, held)):.6f}")
