"""The targets under the padding are not set to -100: the loss counts them.

https://github.com/axolotl-ai-cloud/axolotl/pull/2227
"""

import torch
from common import FAULTY, STEPS, Padded, next_token, optimize, tokens

model = Padded()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    mask = torch.arange(17) < torch.randint(5, 17, (8, 1))
    row = row * mask
    targets = row[:, 1:] if FAULTY else torch.where(mask[:, 1:], row[:, 1:], -100)
    optimize(next_token(model(row[:, :-1], mask[:, :-1].long()), targets), optimizer)
