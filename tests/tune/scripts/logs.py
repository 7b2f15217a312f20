"""A loop that adds up losses and right guesses, and prints them now and then."""

import sys
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(1)
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
model = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("reads:", Path(__file__).read_text(encoding="utf-8").count(".item()" + "\n"))
total, right = 0.0, 0
for step in range(1, 1000):
    batch = torch.randn(16, 8, device=device)
    target = batch.argmax(1) % 4
    guess = model(batch)
    loss = nn.functional.cross_entropy(guess, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
    right += (guess.argmax(1) == target).sum().item()
    if step % 2 == 0:
        print(f"{step}: loss {total / 2}, {right} of {2 * len(batch)}")
        total, right = 0.0, 0
