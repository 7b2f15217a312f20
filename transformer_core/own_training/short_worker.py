"""One process of a short training of the user's: losses, gradient norms and weights.

Started by :mod:`transformer_core.own_training.job`, not by hand.
"""

import hashlib
import math
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from schemas.errors import Diverged
from schemas.results.own_training import ShortTraining, StepFacts
from transformer_core.common.files import atomic_path, write_text
from transformer_core.own_training.order import OwnShortOrder
from transformer_core.own_training.own_step import OwnTrainer, build_trainer
from transformer_core.own_training.user_parts import place_of
from transformer_core.parallel.sharded_weights import whole_weights
from transformer_core.parallel.topology import Process
from transformer_core.run.worker import Program

RECORD = "short.json"
WEIGHTS = "weights.safetensors"


def work(order: OwnShortOrder, program: Program) -> None:
    """Train with every seed; the main rank writes the record, and the weights of the first seed."""
    process = program.process
    losses, norms, digests = [], [], []
    facts = None
    for number in range(order.seeds):
        trained = _train(order, process, number)
        losses.append(trained["losses"])
        norms.append(trained["norms"])
        digests.append(trained["initial"])
        facts = facts or trained["facts"]
        # One process group serves all seeds: it is left at the end.
        strategy = trained["strategy"]
    assert facts is not None
    if process.is_main:
        found = ShortTraining(
            losses=losses, norms=norms, initial_sha256=digests, facts=facts, wide=order.wide
        )
        write_text(order.output / RECORD, found.model_dump_json(indent=1) + "\n")
    strategy.close()


def _train(order: OwnShortOrder, process: Process, number: int) -> dict[str, Any]:
    spec = order.spec
    training = spec.training.model_copy(update={"seed": spec.training.seed + number})
    seeded = spec.model_copy(update={"training": training})
    trainer = build_trainer(seeded, process, wide=order.wide, recorded=True)
    first = order.output / "initial.safetensors", order.output / WEIGHTS
    initial = _weights(trainer, process)
    facts = _facts(trainer)
    losses, norms = [], []
    for step in range(1, trainer.task.steps + 1):
        loss, norm = trainer.step(trainer.batch())
        shares = trainer.strategy.sum(loss.detach().double())
        losses.append(float(shares) / process.world_size)
        norms.append(float(norm) if norm is not None else math.nan)
        if not math.isfinite(losses[-1]):
            raise Diverged(f"training loss at step {step} is {losses[-1]}")
    final = _weights(trainer, process)
    if process.is_main and not number:
        for file, weights in zip(first, (initial, final), strict=True):
            with atomic_path(file) as temporary:
                save_file(weights, temporary)
    return {
        "strategy": trainer.strategy,
        "losses": losses,
        "norms": [norm if math.isfinite(norm) else None for norm in norms],
        "initial": _digest(initial),
        "facts": facts,
    }


def _weights(trainer: OwnTrainer, process: Process) -> dict[str, Tensor]:
    """By the names that the user's module gives them, in whatever they are wrapped."""
    model = trainer.parts.module
    found = whole_weights(model, keep=process.is_main)
    chunked = f"{trainer.task.head}.head."
    # Copies: on a CPU they would change with the training.
    return {
        name.replace(chunked, f"{trainer.task.head}."): tensor.clone()
        for name, tensor in found.items()
    }


def _digest(weights: dict[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name in sorted(weights):
        hashed.update(name.encode())
        plain = weights[name]
        plain = plain.float() if plain.is_floating_point() else plain
        hashed.update(plain.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _facts(trainer: OwnTrainer) -> StepFacts:
    """Facts about the user's step; looks at a batch of its own rank."""
    parameters = [p for p in trainer.parts.module.parameters() if p.requires_grad]
    groups = trainer.optimizer.param_groups
    return StepFacts(
        parameters=sum(p.numel() for p in parameters),
        optimizer=type(trainer.optimizer).__name__,
        optimizer_fused=bool(all(group.get("fused") for group in groups)),
        clip_norm=trainer.parts.clip_norm,
        loss_place=place_of(trainer.parts.loss),
        optimizer_place=place_of(trainer.parts.optimizer),
    )
