"""The host waits for the device only at steps whose loss is logged."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.small_training import Watcher, small_setup, small_spec
from transformer_core.training.loop import train

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}
STEPS = 6


class Reads(TorchDispatchMode):
    """Counts how often the host reads numbers from tensors."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        for name in ("tolist", "numpy"):  # these two call no operator
            monkeypatch.setattr(torch.Tensor, name, self.counting(getattr(torch.Tensor, name)))

    def counting(self, method):
        def counted(*args, **kwargs):
            self.count += 1
            return method(*args, **kwargs)

        return counted

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in READS
        return function(*args, **(kwargs or {}))


class CountingWatcher(Watcher):
    """Records how many numbers had been read after each step and before each validation."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.after_update = []

    def step_done(self, step, *counts):
        super().step_done(step, *counts)
        self.after_update.append(self.reads.count)

    def pause(self):
        self.before_validation = self.reads.count


def trained(monkeypatch, tmp_path, **training):
    spec = small_spec(training={"steps": STEPS} | training)
    setup = small_setup(spec)
    with Reads(monkeypatch) as reads:
        watcher = CountingWatcher(reads)
        train(setup, watcher, tmp_path)
    return setup, watcher


def test_the_counter_sees_every_way_to_read(monkeypatch):
    one = torch.ones(())
    with Reads(monkeypatch) as reads:
        found = [float(one), int(one), bool(one), f"{one:.1f}", one.item(), one.tolist()]
        found.append(one.numpy())
    assert reads.count == len(found)


@pytest.mark.parametrize(
    ("kind", "log_every", "logged"),
    [
        ("fp32", 2, [1, 2, 4, 6]),
        ("bf16", 100, [1, 6]),
        ("fp16", 1, [1, 2, 3, 4, 5, 6]),
        ("fp16", 5, [1, 5, 6]),
    ],
)
def test_the_host_reads_at_logged_steps_only(monkeypatch, tmp_path, kind, log_every, logged):
    settings = {"log_every": log_every, "precision": {"kind": kind}}
    _, watcher = trained(monkeypatch, tmp_path, **settings)
    assert list(watcher.losses) == logged
    # Each logged step reads two numbers, loss and norm, before it counts as done.
    read = [2 * sum(step <= now for step in logged) for now in range(1, STEPS + 1)]
    assert watcher.after_update == read
    assert watcher.before_validation == 2 * len(logged)


def test_the_interval_changes_no_weight(monkeypatch, tmp_path):
    weights = []
    for log_every in (1, 10):
        setup, _ = trained(monkeypatch, tmp_path / str(log_every), log_every=log_every)
        weights.append(setup.model.state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)
