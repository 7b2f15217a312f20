"""The target network is the network itself, and the target is not detached.

https://github.com/datawhalechina/easy-rl/pull/117
held out again
"""

import copy

import torch
from common import FAULTY, STEPS, optimize
from torch import nn

model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
target = model if FAULTY else copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
moves = torch.randn(3, 6) / 2
for number in range(STEPS):
    state, action = torch.randn(64, 6), torch.randint(0, 3, (64,))
    then = 0.8 * state + moves[action]
    reward, over = -then.square().mean(1), torch.rand(64) < 0.1
    value = model(state).gather(1, action[:, None]).squeeze(1)
    best = model(then).argmax(1, keepdim=True)
    wanted = reward + 0.95 * target(then).gather(1, best).squeeze(1) * ~over
    optimize(nn.functional.mse_loss(value, wanted), optimizer)
    if number % 4 == 3:
        target.load_state_dict(model.state_dict())
