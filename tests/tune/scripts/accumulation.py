"""Twelve backward passes make a step, under autocast, with a scaler and data loader workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    data = TensorDataset(torch.randn(480, 8), torch.randint(0, 4, (480,)))
    loader = DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=True)
    for _ in range(100):
        for number, (inputs, labels) in enumerate(loader, 1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), labels) / 12
            scaler.scale(loss).backward()
            if number % 12 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
