"""With a schedule, the schedule steps instead of the optimizer.

https://github.com/ClementPinard/SfmLearner-Pytorch/issues/5
held out a third time
"""

import torch
from common import FAULTY, STEPS, Model, loss_on, tokens

model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
for _ in range(STEPS):
    loss = loss_on(model, tokens(8, 17))
    optimizer.zero_grad()
    loss.backward()
    if FAULTY:
        if schedule:
            schedule.step()
        else:
            optimizer.step()
    else:
        optimizer.step()
        if schedule:
            schedule.step()
    print(f"{float(loss):.6f}")
