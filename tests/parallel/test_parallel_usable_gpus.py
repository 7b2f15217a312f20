"""GPUs that exist but cannot be used are refused with a remedy, never silently ignored."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from schemas.config.parallel import Machine
from schemas.config.run_spec import RunSpec
from schemas.config.training import Evaluation
from schemas.errors import Unsupported
from schemas.results import Gpu
from tests.training.small_training import small_spec
from transformer_core.measure import evaluation as evaluation_job
from transformer_core.measure.evaluation import EvaluationOrder
from transformer_core.parallel import nvml, settling
from transformer_core.parallel.nvml import require_shared_gpus
from transformer_core.parallel.topology import (
    Process,
    has_kernels,
    require_usable_gpus,
    this_process,
)
from transformer_core.run import worker as program
from transformer_core.run.order import Order
from transformer_core.run.statuses import classify
from transformer_core.run.worker import Program, take_place
from transformer_core.training import __main__ as train_alone

GPU = Gpu(
    index=0,
    name="NVIDIA H100",
    memory_bytes=80_000_000_000,
    compute_capability="9.0",
    driver="550.54",
    power_limit_watts=None,
)


def host(monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], **cuda: Any) -> None:
    """A host whose NVML lists these GPUs, and what torch says about CUDA."""
    said = {"is_available": False, "device_count": 0, "arch_list": [], "capability": (9, 0)} | cuda
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "gpus", lambda: (gpus, None))
    monkeypatch.setattr(torch.version, "cuda", said.get("version"))
    monkeypatch.setattr(
        torch,
        "cuda",
        SimpleNamespace(
            is_available=lambda: said["is_available"],
            device_count=lambda: said["device_count"],
            get_arch_list=lambda: said["arch_list"],
            get_device_capability=lambda index: (said["capability"], (6, 1))[index],
            get_device_name=lambda index: GPU.name,
        ),
    )


CUDA13 = {"version": "13.0"}
THERE = CUDA13 | {"is_available": True, "device_count": 1, "arch_list": ["sm_75", "sm_80"]}


@pytest.mark.parametrize(
    ("facts", "visible", "words"),
    [
        (CUDA13, None, r"driver 550\.54 .* CUDA 13\.0, .* 580\.65 or newer"),
        (CUDA13, "7", r"CUDA_VISIBLE_DEVICES is '7': does it name one"),
        ({"version": None}, None, "built without CUDA"),
        (THERE | {"capability": (7, 0)}, None, r"capability 7\.0.*built for sm_75, sm_80"),
    ],
)
def test_gpus_that_cannot_be_used_are_refused_with_what_is_needed(
    monkeypatch, facts, visible, words
):
    host(monkeypatch, [GPU], **facts)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(Unsupported, match=words):
        require_usable_gpus(Machine(device="auto"))
    require_usable_gpus(Machine(device="cpu"))  # the CPU was asked for
    for hidden in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        require_usable_gpus(Machine(device="auto"))


def test_usable_gpus_and_hosts_without_gpus_are_accepted(monkeypatch):
    host(monkeypatch, [])
    require_usable_gpus(Machine(device="auto"))
    host(monkeypatch, [GPU], **THERE, capability=(8, 6))
    require_usable_gpus(Machine(device="auto"))
    host(monkeypatch, [GPU] * 2, **THERE | {"device_count": 2, "capability": (8, 6)})
    require_usable_gpus(Machine(device="auto", devices_per_node=1))  # it does not use the old one
    with pytest.raises(Unsupported, match=r"capability 6\.1"):
        require_usable_gpus(Machine(device="auto", devices_per_node=2))
    rocm = {"version": None, "arch_list": ["gfx90a"]}
    host(monkeypatch, [], **THERE | rocm)
    require_usable_gpus(Machine(device="auto"))


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 0), ["sm_75", "compute_120"], False),
        ((12, 1), ["sm_80", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 0), ["sm_120"], False),
    ],
)
def test_which_machine_code_runs_where(capability, architectures, runs):
    assert has_kernels(capability, architectures) == runs


def test_exclusive_process_mode(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml, "_uuid", lambda module, index: f"GPU-{index}")
    monkeypatch.setattr(
        nvml,
        "_optional",
        lambda module, function, handle: nvml._EXCLUSIVE_PROCESS if handle == 2 else 0,
    )
    monkeypatch.setattr(
        nvml, "_of_each_device", lambda read: {index: read(None, index) for index in (2, 3)}
    )
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    require_shared_gpus(1, ["GPU-2"])
    require_shared_gpus(2, ["GPU-3"])  # the run does not use the other one
    for used in (["GPU-2"], ["GPU-3", "GPU-2"]):
        with pytest.raises(Unsupported, match="nvidia-smi -i 2 -c DEFAULT"):
            require_shared_gpus(2, used)
    (tmp_path / "control").touch()  # the remedy: the Multi-Process Service is there
    require_shared_gpus(2, ["GPU-2"])


def evaluate(spec: RunSpec, folder: Path) -> None:
    """The evaluation of a run, on one device."""
    known: dict[str, Any] = {"data": folder, "output": folder, "command": ""}
    known |= {"weights": folder / "w", "settings": Evaluation()}
    alone = evaluation_job.alone(spec)
    assert (alone.world_size, alone.machine.devices_per_node) == (1, 1)
    order = EvaluationOrder(spec=alone, log_file=folder / "log", **known)
    evaluation_job.work(order, Program(order, 0.0))


def test_every_program_checks_the_gpus_first(monkeypatch, tmp_path, capsys):
    host(monkeypatch, [GPU], version="13.0")
    spec = RunSpec(variant="single")
    with pytest.raises(Unsupported, match="sees none of them"):
        take_place(Order(spec=spec, output=tmp_path, command=""))
    machine = {"device": "cuda", "devices_per_node": 4}
    with pytest.raises(Unsupported, match="sees none of them"):
        evaluate(small_spec(parallel={"kind": "ddp"}, machine=machine), tmp_path)
    (tmp_path / "spec.json").write_text(spec.canonical_json())
    options = ["--spec", str(tmp_path / "spec.json"), "--data", str(tmp_path)]
    assert train_alone.main([*options, "--output", str(tmp_path / "out")]) == 1
    assert "driver 550.54" in capsys.readouterr().err


def test_threads_switch_often_on_gpus(monkeypatch, tmp_path):
    order = Order(spec=RunSpec(variant="single"), output=tmp_path, command="")
    before = sys.getswitchinterval()
    monkeypatch.setattr(settling, "take_segments", lambda device: None)
    try:
        for device, expected in (("cpu", before), ("cuda", settling.SWITCH_SECONDS)):
            process = Process(0, 1, 0, 1, torch.device(device))
            monkeypatch.setattr(program, "this_process", lambda *_, p=process: p)
            take_place(order)
            assert sys.getswitchinterval() == pytest.approx(expected)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("said", "fixed"),
    [
        ("CUDA driver error: operation not supported", True),
        ("CUDA error: invalid argument", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_driver_that_grows_no_segments_gets_those_of_fixed_size(monkeypatch, said, fixed):
    settings: list[str] = []

    def empty(count: int, device: torch.device) -> None:
        if "expandable_segments:False" not in settings:
            raise RuntimeError(said)

    monkeypatch.setattr(settling.torch, "empty", empty)
    monkeypatch.setattr(settling.torch.cuda.memory, "_set_allocator_settings", settings.append)
    if fixed:
        assert settling.take_segments(torch.device("cuda", 0)) == said
        assert settings == ["expandable_segments:False"]
    else:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            settling.take_segments(torch.device("cuda", 0))
        assert not settings


def test_without_nvml_torch_explains_why_it_has_no_device(monkeypatch):
    old = "The NVIDIA driver on your system is too old (found version 12040). Please update it."
    refuse = Mock(side_effect=RuntimeError(old + "\nAlternatively, go to: ..."))
    monkeypatch.setattr(nvml, "gpus", lambda: ([], "pynvml is not installed"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(Unsupported, match=r"needs 1 CUDA device, this host has 0: .* is too old"):
        this_process(Machine(device="cuda", devices_per_node=1), 1)


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("exclusive", "words"),
    [([0, 1], "nvidia-smi -i 1 -c DEFAULT"), ([0], "another process may have it")],
)
def test_a_gpu_that_rejects_the_process(monkeypatch, exclusive, words):
    refuse = Mock(side_effect=RuntimeError(BUSY))
    facts = {"is_available": True, "device_count": 1, "arch_list": ["sm_90"]}
    host(monkeypatch, [GPU], **facts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(nvml, "uuids", lambda: ["GPU-0", "GPU-1"])
    monkeypatch.setattr(
        nvml, "exclusive_gpus", lambda among: [n for n in exclusive if f"GPU-{n}" in among]
    )
    monkeypatch.setattr(torch.cuda, "set_device", refuse, raising=False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unsupported, match=words):
        this_process(Machine(device="cuda", devices_per_node=1), 1)
    status, reason = classify(RuntimeError(BUSY))
    assert status == "unsupported"
    assert words in reason
    assert nvml.busy(RuntimeError("CUDA error: out of memory")) is None
