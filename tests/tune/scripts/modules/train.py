"""Has modules of its own with names that others use too, overwrites a file, keeps an average."""

import copy
import sys
from pathlib import Path

import torch
import tune
import utils

import schemas

assert sys.argv[1:] == ["--name", "two words"], sys.argv
torch.manual_seed(1)
Path("notes.txt").write_text(f"{schemas.OWN} {tune.OWN} {utils.OWN}", encoding="utf-8")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
average = copy.deepcopy(model).eval()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(2000):
    inputs = torch.randn(16, 4)
    optimizer.zero_grad()
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    if step == 2:
        torch.save(model, "model.pt")
        average = copy.deepcopy(model)
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
        average(inputs)
