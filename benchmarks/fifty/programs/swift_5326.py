"""The counter of evaluations without progress is not set back by progress: training ends too soon.

https://github.com/modelscope/ms-swift/pull/5326
held out a third time
"""

import torch
from common import FAULTY, Model, loss_on, optimize, tokens


class EarlyStop:
    def __init__(self, patience):
        self.best, self.waited, self.patience = None, 0, patience

    def ends(self, loss):
        if self.best is None or loss < self.best:
            self.best = loss
            if not FAULTY:
                self.waited = 0
        else:
            self.waited += 1
        return self.waited >= self.patience


model, held = Model(), tokens(8, 17)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
stop = EarlyStop(3)
for _ in range(20):
    optimize(loss_on(model, tokens(2, 17)), optimizer)
    model.eval()
    with torch.no_grad():
        loss = float(loss_on(model, held))
    model.train()
    if stop.ends(loss):
        break
