"""Half precision without a scaler: small gradients become zero.

https://github.com/engichang1467/Open-Rig3R/issues/35
held out again
"""

import torch
from common import FAULTY, STEPS, TwoHeads, optimize
from torch import nn
from torch.nn import functional

model = TwoHeads(8, nn.GELU, 3, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
mix = torch.randn(8, 3)
for _ in range(STEPS):
    pixels = torch.randn(8, 64, 64, 8)
    where = pixels @ mix
    with torch.autocast("cpu", torch.float16 if FAULTY else torch.bfloat16):
        point, ray = model(pixels)
        apart = functional.mse_loss(point.float(), where)
        turned = 1 - functional.cosine_similarity(ray.float(), where, dim=-1)
        loss = apart + 0.0005 * turned.mean()
    optimize(loss, optimizer)
