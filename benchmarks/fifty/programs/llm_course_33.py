"""The end of a text has the same number as padding: it is no target, and the model never stops.

https://github.com/mlabonne/llm-course/issues/33
held out
"""

import torch
from common import FAULTY, STEPS, Padded, next_token, optimize, tokens

END = PAD = 0

model = Padded()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    lengths, places = torch.randint(4, 16, (8, 1)), torch.arange(17)
    row = tokens(8, 17)
    row[places.expand(8, -1) == lengths] = END
    row[places.expand(8, -1) > lengths] = PAD
    mask = places <= lengths
    labels = row.masked_fill(row == PAD if FAULTY else ~mask, -100)
    logits = model(row, mask.long())
    optimize(next_token(logits[:, :-1], labels[:, 1:]), optimizer)
