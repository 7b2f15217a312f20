"""Ends in the way that its argument names."""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback

import torch

how = sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train():
    for _ in range(10_000):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def ring(number, frame):
    if any(each.f_code.co_name == "recv_bytes" for each, _ in traceback.walk_stack(frame)):
        raise TimeoutError("its time is over")


if how == "exec":
    os.execvpe(sys.executable, [sys.executable, *sys.argv], os.environ | {"SET": "1"})
if how == "threads":
    threads = [threading.Thread(target=train) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
if how == "alarm":
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    with contextlib.suppress(TimeoutError):
        train()
    train()
if how == "config":
    text = sys.stdin.read()
    json.loads(text)
if how == "notebook":
    get_ipython().run_line_magic("matplotlib", "inline")  # noqa: F821
if how == "cudnn":
    raise RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED")
if how == "words":
    sys.exit("no data")
if how == "ranks":
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:1", rank=0, world_size=2)
if how == "spawn":
    import torch.multiprocessing

    torch.multiprocessing.spawn(print, nprocs=2)
if how == "tensors":
    weights = torch.zeros(4, 1, requires_grad=True)
    for _ in range(100):
        (torch.randn(2, 4) @ weights - 1).square().sum().backward()
        weights.data -= 0.01 * weights.grad
for step in range({"early": 4, "exit": 4, "nothing": 0}.get(how, 100)):
    (model(torch.randn(2, 4)).sum() * (float("nan") if how == "nan" else 1)).backward()
    optimizer.step()
    if how == "error":
        raise ValueError("a wrong thing")
    if how == "silent":
        os._exit(3)
    if how == "late_exit" and step == 40:
        os._exit(4)
    if how == "late" and step == 40:
        raise ValueError("a late thing")
    if how == "fork":
        child = os.fork()
        if not child:
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    if how == "question":
        input("go on? ")
if how == "exit":
    os._exit(0)
