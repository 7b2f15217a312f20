"""Going on from a checkpoint in the middle of a training, after everything in it was lost."""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup
from transformer_core.training.precision.autocast import build_precision


@torch.no_grad()
def resume(setup: Setup, step: int, folder: Path) -> list[str]:
    """Save a checkpoint, lose everything that is in it, and go on from it. Every rank must call
    this. Weights and optimizer state that do not come back are missing in the next update; what
    else did not come back on any rank is returned."""
    before = _beside(setup)
    checkpoint.save(folder, setup, step, {})
    setup.strategy.synchronise()  # until the main rank has renamed it
    _lose(setup)
    between = _beside(setup)
    path = checkpoint.latest(folder, setup)
    if path is None:
        raise RuntimeError(f"the checkpoint that was written to {folder} is not there")
    checkpoint.load(path, setup)
    setup.strategy.synchronise()
    if setup.process.is_main:
        shutil.rmtree(folder)
    after = _beside(setup)
    # What could not even be lost is not taken up from anywhere either.
    lost = [
        float(not _same(kept, after[kind]) or (bool(kept) and _same(kept, between[kind])))
        for kind, kept in before.items()
    ]
    everywhere = zip(before, zip(*setup.strategy.gather(lost), strict=True), strict=True)
    return [kind for kind, of_ranks in everywhere if any(of_ranks)]


def _beside(setup: Setup) -> dict[str, dict[str, object]]:
    """What a checkpoint keeps beside weights and optimizer state, by kind."""
    random: dict[str, object] = {"cpu": torch.get_rng_state()}
    if setup.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(setup.device)
    # Copies: a strategy may give what it goes on working with.
    messages = {name: tensor.clone() for name, tensor in setup.strategy.memory().items()}
    return {
        "random numbers": random,
        "number format": setup.precision.state(),
        "memory of messages": dict(messages),
    }


def _lose(setup: Setup) -> None:
    for parameter in setup.model.parameters():
        parameter.zero_()
    setup.optimizer.state.clear()
    torch.manual_seed(2**31 - 1)  # of no training
    fresh = build_precision(
        setup.spec.training.precision, setup.device, setup.spec.training.clipping
    )
    vars(setup.precision).update(vars(fresh))
    memory = setup.strategy.memory()
    setup.strategy.remember({name: torch.zeros_like(tensor) for name, tensor in memory.items()})


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(_equal(one[name], other[name]) for name in one)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one == other
