"""Without a number for padding, the reward is read at the last place of a row: from padding.

https://github.com/huggingface/trl/issues/937
held out again
"""

import torch
from common import FAULTY, STEPS, Model, optimize, tokens
from torch import nn

PAD = 0


class Reward(Model):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 1)

    def forward(self, input_ids, attention_mask):
        scores = super().forward(input_ids, mask=attention_mask[:, None, None].bool()).squeeze(-1)
        last = attention_mask.sum(1) - 1
        return scores[:, -1] if FAULTY else scores[torch.arange(len(scores)), last]


def answers(good):
    row = tokens(8, 16)
    row = torch.where(row % 4 == 0, row - good, row)
    mask = (torch.arange(16) < torch.randint(5, 17, (8, 1))).long()
    return row.masked_fill(mask == 0, PAD), mask


model = Reward()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    better, worse = model(*answers(1)), model(*answers(0))
    optimize(-nn.functional.logsigmoid(better - worse).mean(), optimizer)
