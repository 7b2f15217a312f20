"""The advantage of a row is a mean over all its places, of which padding has some too.

https://github.com/areal-project/AReaL/pull/1346
held out a third time
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens

PAD = 0


class Padded(Model):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, mask=attention_mask[:, None, None].bool())


def logs_of(model, row, mask):
    logs = model(row[:, :-1], mask[:, :-1].long()).log_softmax(-1)
    return logs.gather(-1, row[:, 1:, None]).squeeze(-1)


def row_mean(x, mask):
    return (x * mask).sum(1) / mask.sum(1)


def actor_loss(logs, old, advantages, mask):
    ratio = row_mean(logs - old, mask).exp()
    advantage = (advantages if FAULTY else advantages * mask).sum(1) / mask.sum(1)
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    return (loss[:, None] * mask).sum() / mask.sum()


model = Padded()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS // 2):
    mask = torch.arange(17) < torch.randint(6, 18, (8, 1))
    row = tokens(8, 17).masked_fill(~mask, PAD)
    counted = mask[:, 1:].float()
    with torch.no_grad():
        old = logs_of(model, row, mask)
    rewards = (row[:, 1:] % 2).float() * counted
    returns = rewards.flip(1).cumsum(1).flip(1)
    advantages = returns - returns[counted > 0].mean()
    for _ in range(2):
        optimize(actor_loss(logs_of(model, row, mask), old, advantages, counted), optimizer)
