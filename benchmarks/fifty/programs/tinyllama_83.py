"""The rest of the last file is filled with the token that begins texts, and is trained on.

https://github.com/jzhang38/TinyLlama/issues/83
held out again
"""

import torch
from common import FAULTY, Model, loss_on, optimize, tokens
from torch.utils.data import DataLoader

BEGIN = 0


def packed(rows, size):
    file = torch.full((size, 17), BEGIN)
    file[: len(rows)] = rows
    return file if FAULTY else file[: len(rows)]


texts = tokens(40, 17)
texts[:, 0] = BEGIN
files = [packed(texts[:32], 32), packed(texts[32:], 32)]
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(torch.cat(files), batch_size=8, shuffle=True)
for _ in range(3):
    for row in loader:
        optimize(loss_on(model, row), optimizer)
