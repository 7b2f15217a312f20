"""Optimizers."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from schemas.config.training import Adam, AdamW, AdamW8bit, AnyOptimizer, Sgd
from schemas.errors import Unsupported
from transformer_core.parallel.strategies.sharded_weights import is_sharded
from transformer_core.training.optimization.master_weights import MasterAdamW


def build_optimizer(
    spec: AnyOptimizer,
    parameters: Iterable[nn.Parameter],
    device: torch.device,
    masters: Mapping[nn.Parameter, torch.Tensor] | None = None,
) -> Optimizer:
    """The optimizer that ``spec`` names; the loop sets its learning rate at every step.

    Each parameter group says under ``rate_factor`` by how much it multiplies the schedule's rate.
    ``masters`` has what parameters of fewer bits stand for: those are updated in 32 bits.
    Raises Unsupported where a library is missing or cannot work on ``device``.
    """
    fused = device.type in ("cuda", "cpu")
    if masters:
        return _of_masters(spec, parameters, masters)
    match spec:
        case AdamW():
            adam = _adam_arguments(spec)
            return torch.optim.AdamW(_group(parameters), fused=spec.fused and fused, **adam)
        case Adam():
            return torch.optim.Adam(
                _group(parameters), lr=0.0, betas=spec.betas, eps=spec.eps, foreach=False
            )
        case Sgd():
            group = _group(parameters, spec.rate_factor)
            # torch has a fused step on shards for Adam only.
            fused = fused and not _sharded(group)
            return torch.optim.SGD(group, lr=0.0, momentum=spec.momentum, fused=fused)
        case AdamW8bit():
            return _eight_bit(spec, parameters, device)


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes that the optimizer keeps on this device between steps.

    Per parameter 8 for AdamW, 4 for SGD with momentum and little over 2 for 8-bit AdamW. Of a
    sharded parameter this counts the shard of this rank. 0 before the first step.
    """
    storages: dict[int, int] = {}  # by address, as tensors may share one
    waiting: list[Any] = [value for entry in optimizer.state.values() for value in entry.values()]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, torch.Tensor):
            continue
        if is_traceable_wrapper_subclass(value):  # a shard, or a quantized tensor
            names, _ = value.__tensor_flatten__()
            waiting += [getattr(value, name) for name in names]
            continue
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _group(parameters: Iterable[nn.Parameter], rate_factor: float = 1.0) -> list[dict[str, Any]]:
    return [{"params": list(parameters), "rate_factor": rate_factor}]


def _of_masters(
    spec: AnyOptimizer, parameters: Iterable[nn.Parameter], masters: Mapping[nn.Parameter, Any]
) -> Optimizer:
    if not isinstance(spec, AdamW):
        raise Unsupported(
            f"training.optimizer: {spec.kind} does not keep weights of 32 bits beside those of 16; "
            "take adamw"
        )
    return MasterAdamW(_group(parameters), masters, **_adam_arguments(spec))


def _sharded(group: list[dict[str, Any]]) -> bool:
    return any(is_sharded(parameter) for parameter in group[0]["params"])


def _adam_arguments(spec: AdamW | AdamW8bit) -> dict[str, Any]:
    return {
        "lr": 0.0,
        "betas": spec.betas,
        "eps": spec.eps,
        "weight_decay": spec.weight_decay,
    }


def _eight_bit(
    spec: AdamW8bit, parameters: Iterable[nn.Parameter], device: torch.device
) -> Optimizer:
    group = _group(parameters)
    if _sharded(group):
        raise Unsupported(
            "bitsandbytes' 8-bit AdamW cannot work on shards of parameters: "
            "take another optimizer with FSDP, or DDP"
        )
    try:
        # Here, because the library is optional and takes a second to import.
        from transformer_core.training.optimization.eight_bit_adamw import BlockwiseAdamW
    except ImportError as error:
        raise Unsupported(
            f"8-bit AdamW needs bitsandbytes 0.50 or newer ({error}): "
            "pip install 'bitsandbytes>=0.50'"
        ) from error
    arguments = _adam_arguments(spec)
    try:
        # The library imports also where it has no kernel for the device, and fails at a step.
        probe = nn.Parameter(torch.zeros(4096, device=device))
        probe.grad = torch.zeros_like(probe)
        BlockwiseAdamW([probe], **arguments).step()
    except (RuntimeError, AttributeError) as error:
        raise Unsupported(f"bitsandbytes cannot take a step on {device}: {error}") from error
    return BlockwiseAdamW(group, **arguments)
