"""Advantages are rewards (n) minus values (n, 1): one for each pair of steps, instead of each step.

https://github.com/zcaicaros/L2D/issues/5
held out again
"""

import torch
from common import FAULTY, STEPS, TwoHeads, optimize
from torch import nn


class Policy(TwoHeads):
    def forward(self, state):
        logits, value = super().forward(state)
        return torch.distributions.Categorical(logits=logits), value


model = Policy(6, nn.Tanh, 4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(STEPS // 2):
    state = torch.randn(36, 6)
    with torch.no_grad():
        policy, _ = model(state)
        action = policy.sample()
        before = policy.log_prob(action)
        reward = (action == state[:, :4].argmax(1)).float() + state[:, 4]
    for _ in range(2):
        policy, value = model(state)
        advantage = reward - (value.detach() if FAULTY else value.detach().squeeze(1))
        ratio = (policy.log_prob(action) - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        missed = nn.functional.mse_loss(value.squeeze(1), reward)
        optimize(missed - gain - 0.01 * policy.entropy().mean(), optimizer)
