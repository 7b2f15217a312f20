"""Traces written by the installed torch's profiler, and the reader as a separate distribution."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode
from traces import kineto, on_device

from schemas.results import Breakdown
from transformer_core.trace.breakdown.summary import breakdown_of_files
from transformer_core.trace.events import phases
from transformer_core.trace.tables import read_files

STEPS = 2


def profiled(device: str, path: Path) -> tuple[Breakdown, int]:
    """The breakdown of a few steps of a small training, and the FLOPs that torch counts in them."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.to(device).parameters())

    def step() -> None:
        with record_function(phases.label(phases.STEP)):
            with record_function(phases.label(phases.DATA)):
                batch = torch.randn(16, 64).to(device)
            with record_function(phases.label(phases.FORWARD)):
                loss = model(batch).square().sum()
            with record_function(phases.label(phases.BACKWARD)):
                loss.backward()
            with record_function(phases.label(phases.OPTIMIZER)):
                optimizer.step()
                optimizer.zero_grad()
            if device == "cuda":
                torch.cuda.synchronize()

    step()
    with FlopCounterMode(display=False) as counter:
        step()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device == "cuda")]
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            step()
    profiler.export_chrome_trace(str(path))
    return breakdown_of_files([path], "small")[0], counter.get_total_flops() * STEPS


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
    assert breakdown.summary.forward_backward == device.forward_backward
    whole = device.profiled
    assert 0 < whole.compute_ns < whole.window_ns
    assert whole.communication_ns == 0


def test_a_cpu_training(tmp_path):
    breakdown, flops = profiled("cpu", tmp_path / "trace.json.gz")
    check(breakdown, flops)
    assert breakdown.devices[0].device == "cpu"


@pytest.mark.gpu
def test_a_cuda_training(tmp_path):
    breakdown, flops = profiled("cuda", tmp_path / "trace.json.gz")
    check(breakdown, flops)
    (device,) = breakdown.devices
    assert device.device == "cuda:0"
    copies = [activity for activity in device.activities if activity.name == "h2d"]
    assert [(copy.count, copy.bytes) for copy in copies] == [(STEPS, STEPS * 16 * 64 * 4)]
    assert device.bound.host_ns > 0
    assert not breakdown.notes  # every launch is in the trace


ROOT = Path(__file__).resolve().parents[2]
BLOCKED = "import sys\nsys.modules |= dict.fromkeys(('torch', 'snakemake', 'yaml', 'psutil'))\n"


def test_tables(traces):
    tables = read_files([traces])
    assert len(tables.events) == 2 * 2 * 4
    assert tables.steps["compute_ns"].tolist() == [20_000, 20_000, 30_000, 30_000]
    assert tables.kernels["time_ns"].tolist() == [60_000, 60_000, 40_000, 20_000]
    assert tables.layers.set_index("path").loc["model/encoder", "own_ns"] == 100_000
    assert tables.devices["rank"].tolist() == [0, 1]
    assert tables.phases.empty
    assert str(tables).startswith("trace: 2 ranks")
    window = read_files(str(traces), end_ms=0.05)
    assert window.kernels["name"].tolist() == ["sgemm", "sgemm"]
    copy = on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 5, 1, bytes=8)
    copies = read_files([kineto(traces.parent / "copy.json", [copy])])
    assert copies.kernels.empty


def test_the_example(traces, monkeypatch, capsys):
    monkeypatch.setenv("TRACES", str(traces))
    notebook = json.loads((ROOT / "docs" / "examples" / "traces.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert "model/encoder" in said
    assert "pause_ns" in said


@pytest.mark.slow
def test_the_wheel_needs_neither_torch_nor_snakemake(traces, tmp_path):
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    for folder in ("transformer_core", "schemas", "packages"):
        leave = shutil.ignore_patterns("__pycache__", "json", "*.html", "*.po")
        shutil.copytree(ROOT / folder, checkout / folder, ignore=leave)
    build = f"-m pip wheel -q --no-deps --no-build-isolation --no-index -w {tmp_path}".split()
    subprocess.run([sys.executable, *build, str(checkout / "packages" / "trace")], check=True)
    (wheel,) = tmp_path.glob("transformer_trace-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert {path.name for path in (site / "transformer_core").iterdir()} >= {"common", "trace"}
    assert not (site / "transformer_core" / "training").exists()
    program = (
        f"{BLOCKED}import transformer_core.trace.__main__ as trace\n"
        f"assert trace.__file__.startswith({str(site)!r}), trace.__file__\n"
        "words = sys.argv[1:]\n"
        "assert trace.main([*words, '--events', 'e.parquet']) == 0\n"
        "assert trace.main(['diff', *words, 'e.parquet']) == 0\n"
        "assert trace.main(['perfetto', 'e.parquet', '--output', 'all.json.gz']) == 0\n"
        "import transformer_core.trace.tables as tables\n"
        "assert tables.read_files(words).breakdown.devices\n"
    )
    command, env = [sys.executable, "-c", program, str(traces)], {"PYTHONPATH": str(site)}
    said = subprocess.check_output(command, cwd=tmp_path, env=os.environ | env, text=True)
    assert "2 ranks" in said
