"""Checkpoints that resume a run exactly, in formats that execute nothing when read.

A checkpoint is a folder ``step-<n>`` with tensors in safetensors files and everything else in
JSON. It is written under a temporary name and renamed when every rank has written its part, so a
folder with the final name is complete.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from torch.optim import Optimizer

from transformer_core.train.assemble import Setup

_PREFIX = "step-"


def save(folder: Path, setup: Setup, step: int, state: dict[str, Any]) -> Path | None:
    """Write the checkpoint of ``step`` (optimizer steps done) and remove older ones.

    Called on every rank. ``state`` is kept as JSON. Returns the checkpoint on the main rank.
    """
    final = folder / f"{_PREFIX}{step:08d}"
    partial = folder / f".{final.name}.partial"
    main = setup.process.is_main
    if main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    setup.strategy.synchronise()
    save_file(_random_state(setup.device), partial / f"random-{setup.process.rank}.safetensors")
    if main:
        tensors, scalars = _optimizer_state(setup.optimizer)
        save_model(setup.model, str(partial / "model.safetensors"))
        save_file(tensors, partial / "optimizer.safetensors")
        record = {
            "step": step,
            "spec": setup.spec.digest(),
            "world_size": setup.process.world_size,
            "optimizer": scalars,
            "state": state,
        }
        (partial / "state.json").write_text(json.dumps(record))
    setup.strategy.synchronise()
    if not main:
        return None
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in _complete(folder):
        if old != final:
            shutil.rmtree(old)
    return final


def latest(folder: Path, setup: Setup) -> Path | None:
    """The newest complete checkpoint that belongs to this very run spec, if there is one."""
    for path in reversed(_complete(folder)):
        if json.loads((path / "state.json").read_text())["spec"] == setup.spec.digest():
            return path
    return None


def load(path: Path, setup: Setup) -> tuple[int, dict[str, Any]]:
    """Put weights, optimizer and random state back; returns the steps done and ``state``."""
    record = json.loads((path / "state.json").read_text())
    load_model(setup.model, str(path / "model.safetensors"), device=str(setup.device))
    tensors = load_file(path / "optimizer.safetensors", device=str(setup.device))
    _restore_optimizer(setup.optimizer, tensors, record["optimizer"])
    random = load_file(path / f"random-{setup.process.rank}.safetensors")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and setup.device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], setup.device)
    return record["step"], record["state"]


def remove_all(folder: Path) -> None:
    """Delete the checkpoints of a run that is done."""
    shutil.rmtree(folder, ignore_errors=True)


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "state.json").exists())


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _optimizer_state(optimizer: Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state by '<parameter number>.<name>', tensors apart from plain numbers."""
    tensors, scalars = {}, {}
    for number, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}.{name}"] = value.contiguous()
            else:
                scalars[f"{number}.{name}"] = value
    return tensors, scalars


def _restore_optimizer(
    optimizer: Optimizer, tensors: dict[str, torch.Tensor], scalars: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in (tensors | scalars).items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    # The groups (learning rate, betas) come from the run spec, not from the checkpoint.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
