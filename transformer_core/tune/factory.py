"""Trains the parts of a factory in a plain loop: ``python -m transformer_core.tune.factory
SETTINGS``, a JSON object.

A factory is a function of the user's that returns module, batches, loss and optimizer. This program
turns it into a script, which is started, observed and changed like any other. It imports as little
of the project as possible: the user's modules may have any name.
"""

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import record_function

from transformer_core.common.factories import function_of, near, wrong
from transformer_core.tune.nested import mapped, tensors

REQUIRED = ("module", "batches", "loss", "optimizer")
SETTING = "task.factory"
KNOWN = (*REQUIRED, "clip_norm")
SHAPE = f"a dictionary of {', '.join(REQUIRED)} and, if you clip, clip_norm"
LOSS_SCALE = 1024.0
"""First scale of losses in float16. torch's default, 65536, makes many models skip their first
steps."""


@dataclass(frozen=True)
class Parts:
    """The parts of a training that a factory returns for one rank."""

    module: nn.Module
    batches: Iterator[Any]
    """One batch for each optimizer step: tensors, or tuples, lists or dictionaries of tensors, whose
    first dimension is the samples."""
    loss: Callable[[nn.Module, Any], Tensor]  # the mean loss of a batch, a scalar
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    clip_norm: float  # largest norm of the gradient; 0 does not clip


def load(factory: str, options: Mapping[str, Any], rank: int, world: int, seed: int) -> Parts:
    """The parts that ``factory``, package.module:function, returns for a rank; ValueError if one is
    missing or has the wrong type. Errors of the function itself are not caught."""
    refused = partial(wrong, SETTING, factory)
    made = function_of(SETTING, factory)(rank=rank, world_size=world, seed=seed, **options)
    if not isinstance(made, dict):
        raise refused(f"returns a {type(made).__name__}", f"return {SHAPE}")
    if missing := [name for name in REQUIRED if name not in made]:
        raise refused(f"returns no {' and no '.join(missing)}", f"return {SHAPE}")
    if unknown := [name for name in made if name not in KNOWN]:
        raise refused(f"returns {unknown[0]}, which is not known", near(unknown[0], KNOWN))
    kinds = {name: type(part).__name__ for name, part in made.items()}
    if not isinstance(made["module"], nn.Module):
        raise refused(f"module is a {kinds['module']}", "give a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in made["module"].parameters()):
        remedy = "give a module with parameters that require gradients"
        raise refused("module has no parameter to train", remedy)
    for name in ("loss", "optimizer"):
        if not callable(made[name]):
            raise refused(f"{name} is a {kinds[name]}", "give a function")
    try:
        batches = iter(made["batches"])
    except TypeError:
        remedy = "give an iterable without end"
        raise refused(f"batches is a {kinds['batches']}", remedy) from None
    try:
        clip_norm = float(made.get("clip_norm") or 0.0)
    except (TypeError, ValueError):
        clip_norm = math.nan
    if not clip_norm >= 0:
        remedy = "give a number above 0; without it, nothing is clipped"
        raise refused(f"clip_norm is {made['clip_norm']!r}", remedy)
    return Parts(made["module"], batches, made["loss"], made["optimizer"], clip_norm)


def next_batch(factory: str, batches: Iterator[Any]) -> Any:
    """The next batch; ValueError if there is none."""
    try:
        return next(batches)
    except StopIteration:
        raise wrong(
            SETTING, factory, "batches have an end", "begin again at the end of the data"
        ) from None


def checked(factory: str, loss: Any) -> Tensor:
    """``loss`` if it is a scalar tensor with a gradient; ValueError otherwise."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        tensor = isinstance(loss, Tensor)
        kind = f"{loss.dtype} {list(loss.shape)}" if tensor else type(loss).__name__
        raise wrong(
            SETTING, factory, f"loss gives a {kind}", "return the mean loss, a scalar tensor"
        )
    if not loss.requires_grad:
        remedy = "compute it from the module's output, without detach, item or torch.no_grad"
        raise wrong(SETTING, factory, "loss gives a tensor without a gradient", remedy)
    return loss


def divided(batch: Any, parts: int) -> Iterator[Any]:
    """A batch in ``parts`` equal parts of its samples; ValueError if their number is not a multiple
    of ``parts``."""
    if parts == 1:
        yield batch
        return
    sized = [tensor for tensor in tensors(batch, floating=False) if tensor.dim()]
    if not sized:
        raise ValueError(
            "a batch has no tensor; remedy: give tensors whose first dimension is samples"
        )
    count = len(sized[0])
    if count % parts:
        raise ValueError(
            f"not supported: {count} samples of a batch do not make {parts} equal micro-batches"
        )
    size = count // parts
    for number in range(parts):
        yield mapped(batch, partial(_rows, rows=slice(number * size, (number + 1) * size)))


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor[rows] if tensor.dim() else tensor


class _Replicated(DistributedDataParallel):
    """DistributedDataParallel that also has the attributes of its module, for losses that read
    them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def spread(module: nn.Module, over: str | None, layers: str | None, device: torch.device) -> Any:
    """``module`` over all ranks, with DistributedDataParallel or in shards (FSDP2)."""
    if over is None:
        return module
    if over == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = distributed.init_device_mesh(device.type, (distributed.get_world_size(),))
        for layer in layers_of(module, layers):
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)
    made = _Replicated(module, device_ids=[device.index] if device.type == "cuda" else None)
    if over == "ddp_fp16_messages":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        made.register_comm_hook(None, fp16_compress_hook)
    return made


def train(settings: Mapping[str, Any], steps: int | None = None) -> nn.Module:
    """Train for ``steps`` steps, or without end. Profilers see the phases of a step by name."""
    factory, parts = settings["factory"], int(settings.get("micro_batches", 1))
    over, (rank, world, local) = settings.get("over"), (0, 1, 0)
    if over is not None:  # Otherwise these are variables of the user's cluster, if any.
        rank, world, local = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = _device(settings["device"], local)
    threads = settings["threads"] or (max(1, (os.cpu_count() or 1) // world) if world > 1 else None)
    if threads:
        torch.set_num_threads(threads)
    if world > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(settings["seed"])
    seed = settings["seed"] + settings["shift"]
    mine = load(factory, settings["options"], rank, world, seed)
    module = spread(mine.module.to(device), over, settings["layers"], device)
    module.train()
    torch.manual_seed(settings["seed"] + rank)
    optimizer = mine.optimizer(module.parameters())
    if not callable(getattr(optimizer, "step", None)):
        problem = f"optimizer gives a {type(optimizer).__name__}"
        raise wrong(SETTING, factory, problem, "return a torch.optim.Optimizer")
    scaled = bool(settings.get("scaled"))
    scaler = torch.amp.GradScaler(device.type, init_scale=LOSS_SCALE, enabled=scaled)
    for _ in itertools.count() if steps is None else range(steps):
        with record_function("data"):
            batch = mapped(next_batch(factory, mine.batches), lambda t: t.to(device))
        optimizer.zero_grad(set_to_none=True)
        for number, piece in enumerate(divided(batch, parts), 1):
            waits = number < parts and isinstance(module, DistributedDataParallel)
            with module.no_sync() if waits else contextlib.nullcontext():
                with record_function("loss"):
                    loss = checked(factory, mine.loss(module, piece)) / parts
                with record_function("backward"):
                    # Scaling the gradient instead of the loss keeps the loss readable.
                    loss.backward(scaler.scale(torch.ones_like(loss)))
        with record_function("optimizer"):
            if mine.clip_norm:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(module.parameters(), mine.clip_norm)
            scaler.step(optimizer)
            scaler.update()
    return module


def _device(asked: str, local: int) -> torch.device:
    if asked == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local)
    if local >= (found := torch.cuda.device_count()):
        ranks = os.environ["LOCAL_WORLD_SIZE"]
        raise ValueError(f"not supported: needs {ranks} CUDA devices, this host has {found}")
    torch.cuda.set_device(device)
    return device


def layers_of(module: nn.Module, name: str | None) -> list[nn.Module]:
    """The layers that FSDP gathers one by one: those of class ``name``, or all members of
    ``nn.ModuleList``."""
    if name is None:
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        return [layer for layers in lists for layer in layers]
    found = [part for part in module.modules() if type(part).__name__ == name]
    if not found:
        raise ValueError(
            f"not supported: task.layers = {name}: the module has no part of that class"
        )
    return found


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
