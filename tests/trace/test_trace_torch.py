"""What this torch's own profiler writes, read back: on a CPU, and on a CUDA device."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from schemas.results import Breakdown
from transformer_core.trace.breakdown.profile import breakdown_of_files
from transformer_core.trace.events import phases

STEPS = 2


class Training:
    """A small training with the ranges of a capture."""

    def __init__(self, device: str) -> None:
        self.model = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 32)
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.device = device

    def step(self) -> None:
        with record_function(phases.label(phases.STEP)):
            with record_function(phases.label(phases.DATA)):
                batch = torch.randn(16, 64).to(self.device)
            with record_function(phases.label(phases.FORWARD)):
                loss = self.model(batch).square().sum()
            with record_function(phases.label(phases.BACKWARD)):
                loss.backward()
            with record_function(phases.label(phases.OPTIMIZER)):
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.device == "cuda":
                torch.cuda.synchronize()


def profiled(device: str, path: Path) -> tuple[Breakdown, int]:
    """The breakdown of a few steps, and the FLOPs that torch counts in them."""
    training = Training(device)
    training.step()
    with FlopCounterMode(display=False) as counter:
        training.step()
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            training.step()
    profiler.export_chrome_trace(str(path))
    breakdown, _ = breakdown_of_files([path], "small")
    return breakdown, counter.get_total_flops() * STEPS


def check(breakdown: Breakdown, flops: int) -> None:
    assert breakdown.status == "ok"
    (device,) = breakdown.devices
    assert len(device.steps) == STEPS
    shown = {phase.phase for phase in device.phases}
    assert {"forward", "backward", "optimizer"} <= shown
    classes = {found.operator_class: found for found in device.operators}
    assert classes["contraction"].flops == flops
    assert (classes["contraction"].intensity or 0) > (classes["element_wise"].intensity or 0) > 0
    (linear,) = [ratio for ratio in device.forward_backward if ratio.operators == "linear"]
    # Three products backward for two forward: the first layer needs no gradient of its input.
    first, second = 64 * 128, 128 * 32
    assert linear.flops_ratio == pytest.approx((first + 2 * second) / (first + second))
    whole = device.profiled
    assert 0 < whole.compute_ns < whole.window_ns
    assert whole.communication_ns == 0


def test_a_cpu_training(tmp_path: Path) -> None:
    breakdown, flops = profiled("cpu", tmp_path / "trace.json.gz")
    check(breakdown, flops)
    assert breakdown.devices[0].device == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_training(tmp_path: Path) -> None:
    breakdown, flops = profiled("cuda", tmp_path / "trace.json.gz")
    check(breakdown, flops)
    (device,) = breakdown.devices
    assert device.device == "cuda:0"
    copies = [activity for activity in device.activities if activity.name == "h2d"]
    assert [(copy.count, copy.bytes) for copy in copies] == [(STEPS, STEPS * 16 * 64 * 4)]
    assert device.host_bound_ns is not None
    assert not breakdown.notes  # every launch is in the trace
