"""The training gets the generator's optimizer twice: the discriminator is never updated.

https://github.com/Lornatang/ESRGAN-PyTorch/issues/39
held out again
"""

import torch
from common import FAULTY, STEPS
from torch import nn
from torch.nn import functional

generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generating = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.5, 0.99))
discriminating = torch.optim.Adam(discriminator.parameters(), lr=3e-3, betas=(0.5, 0.99))


def judged(x, real):
    score = discriminator(x)
    return functional.binary_cross_entropy_with_logits(score, torch.full_like(score, real))


def train(generating, discriminating):
    for _ in range(STEPS):
        sharp = torch.randn(32, 4) @ torch.ones(4, 16).tril() / 2
        coarse = sharp.unflatten(1, (4, 4)).mean(-1)
        discriminator.requires_grad_(False)
        generator.zero_grad()
        made = generator(coarse)
        loss = functional.l1_loss(made, sharp) + 0.1 * judged(made, 1.0)
        loss.backward()
        generating.step()
        discriminator.requires_grad_(True)
        discriminator.zero_grad()
        judged(sharp, 1.0).backward()
        judged(made.detach(), 0.0).backward()
        discriminating.step()
        print(f"{float(loss):.6f}")


train(generating, generating if FAULTY else discriminating)
