"""Features are gathered from all ranks, and their gradients are not added up over the ranks.

https://github.com/lightly-ai/lightly/issues/1528
held out
ranks: 2
"""

import torch
from common import FAULTY, STEPS, optimize, tokens
from torch import distributed, nn
from torch.nn import functional

distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(ranks)]
        distributed.all_gather(parts, part)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *slopes):
        total = torch.stack(slopes)
        if not FAULTY:
            distributed.all_reduce(total)
        return total[rank]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(40, 32), nn.Linear(32, 32)

    def forward(self, row):
        return functional.normalize(self.inner(self.embedding(row).mean(1).relu()), dim=-1)


model = nn.parallel.DistributedDataParallel(Encoder())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(10 + rank)
for _ in range(STEPS):
    row = tokens(8)
    one, two = model(torch.cat([row[:, ::2], row[:, 1::2]])).chunk(2)
    scores = one @ torch.cat(Gather.apply(two)).T / 0.1
    optimize(functional.cross_entropy(scores, torch.arange(8) + 8 * rank), optimizer)
