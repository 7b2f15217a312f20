"""The schedule is not in the checkpoint: after resuming, the rate starts again from the beginning.

https://github.com/pytorch/torchtitan/pull/275
"""

import io

import torch
from common import FAULTY, Model, loss_on, optimize, tokens

saved = None
for _ in range(2):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
    if saved is not None:
        state = torch.load(io.BytesIO(saved))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if not FAULTY:
            schedule.load_state_dict(state["schedule"])
    for _ in range(8):
        optimize(loss_on(model, tokens(8, 17)), optimizer)
        schedule.step()
    file = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state if FAULTY else state | {"schedule": schedule.state_dict()}, file)
    saved = file.getvalue()
