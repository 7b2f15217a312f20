"""The divergence of the student from the teacher is computed from the teacher's logits twice.

https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66
held out a third time
"""

import torch
from common import FAULTY, STEPS, optimize
from torch import nn
from torch.nn import functional

HEAT = 5.0
large = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
small = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
for _ in range(STEPS):
    x = torch.randn(32, 16)
    with torch.no_grad():
        large_logits = 10 * large(x)
    output = small(x)
    label = (large_logits + torch.randn(32, 4)).argmax(-1)
    soft_target = (large_logits / HEAT).log_softmax(-1)
    soft = ((large_logits if FAULTY else output) / HEAT).log_softmax(-1)
    distance = functional.kl_div(soft, soft_target, reduction="batchmean", log_target=True)
    loss = 0.9 * HEAT**2 * distance + 0.1 * functional.cross_entropy(output, label)
    optimize(loss, optimizer)
