"""A generator and a discriminator take turns; the second is called before the first has stepped."""

import torch
from torch import nn

torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
judge = nn.BCEWithLogitsLoss()
for _ in range(2000):
    false = generator(torch.randn(16, 4))
    for_critic.zero_grad()
    judge(critic(torch.randn(16, 8)), torch.ones(16, 1)).backward()
    judge(critic(false.detach()), torch.zeros(16, 1)).backward()
    for_critic.step()
    for_generator.zero_grad()
    judge(critic(false), torch.ones(16, 1)).backward()
    for_generator.step()
