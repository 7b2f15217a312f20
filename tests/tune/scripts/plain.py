"""A small language model with dropout, AdamW and a schedule: the script that tests damage."""

import torch
from torch import nn

torch.manual_seed(1)
RATE, DROP = 1e-2, 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.inner, self.outer = nn.Linear(32, 64), nn.Linear(64, 32)
        self.drop = nn.Dropout(DROP)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.outer(torch.relu(self.inner(self.norm(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
for _ in range(2000):
    tokens = torch.randint(0, 40, (8, 16))
    loss = nn.functional.cross_entropy(model(tokens).view(-1, 40), (tokens * 3 + 1).view(-1) % 40)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
