"""A checkpoint is loaded into the state of a new optimizer without moments: they are lost.

https://github.com/KempnerInstitute/KempnerForge/pull/115
held out a third time
"""

import tempfile

import torch
from common import FAULTY, Model, train
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def state_of(model, optimizer):
    if FAULTY:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    model, optimizer = get_state_dict(model, optimizer)
    return {"model": model, "optimizer": optimizer}


def resume(model, optimizer, folder):
    state = state_of(model, optimizer)
    checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    if FAULTY:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    else:
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


with tempfile.TemporaryDirectory() as folder:
    for run in range(2):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if run:
            resume(model, optimizer, folder)
        train(model, optimizer, 8)
        if not run:
            state = state_of(model, optimizer)
            checkpoint.save(state, checkpoint_id=folder, no_dist=True)
