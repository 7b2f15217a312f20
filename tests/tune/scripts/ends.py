"""Ends in the way that its argument names."""

import os
import sys

import torch

how = sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if how == "spawn":
    import torch.multiprocessing

    torch.multiprocessing.spawn(print, nprocs=2)
for step in range({"early": 4, "exit": 4, "nothing": 0}.get(how, 100)):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    if how == "error":
        raise ValueError("a wrong thing")
    if how == "silent":
        os._exit(3)
    if how == "late_exit" and step == 40:
        os._exit(4)
    if how == "late" and step == 40:
        raise ValueError("a late thing")
    if how == "question":
        input("go on? ")
if how == "exit":
    os._exit(0)
