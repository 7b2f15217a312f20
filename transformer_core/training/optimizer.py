"""Optimizers and learning rates.

AdamW for weights in bfloat16 also keeps them in 32 bits, as masters (arXiv 1710.03740, 3.1). An
update is often smaller than half the distance between two neighbouring numbers with 8 significant
bits, and would be lost. It therefore goes to the masters, which are then rounded to 16 bits.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.training import (
    Adam,
    AdamW,
    AdamW8bit,
    AnyOptimizer,
    AnySchedule,
    Constant,
    Cosine,
    Linear,
    Noam,
    Sgd,
)
from schemas.errors import Unsupported
from transformer_core.models.device_kind import device_kind
from transformer_core.parallel.sharded_weights import is_sharded, mesh_of


def build_optimizer(
    spec: AnyOptimizer,
    module: nn.Module,
    device: torch.device,
    masters: Mapping[nn.Parameter, torch.Tensor] | None = None,
) -> Optimizer:
    """Builds the optimizer of ``spec`` for ``module``; the loop sets its learning rate at every step.

    A parameter group multiplies the schedule's rate by its ``rate_factor``. ``masters`` are the
    32-bit weights of parameters with fewer bits; the optimizer updates the masters. Raises
    Unsupported if a library is missing or does not support ``device``.
    """
    fused = device.type in ("cuda", "cpu")
    parameters = list(module.parameters())
    sharded = any(map(is_sharded, parameters))
    if masters:
        if not isinstance(spec, AdamW):
            raise Unsupported(
                f"training.optimizer: {spec.kind} does not keep 32-bit copies of 16-bit weights; "
                "use adamw"
            )
        trained = _group(parameter for parameter in parameters if parameter in masters)
        return MasterAdamW(trained, masters, **_adam_arguments(spec))
    match spec:
        case AdamW():
            # None, not False, lets torch take all weights together on a GPU, one by one on a CPU.
            fused_or_not = (spec.fused and fused) or None
            adam = _adam_arguments(spec)
            return torch.optim.AdamW(_group(parameters), fused=fused_or_not, **adam)
        case Adam():
            return torch.optim.Adam(_group(parameters), lr=0.0, betas=spec.betas, eps=spec.eps)
        case Sgd():
            group = _group(parameters, spec.rate_factor)
            # On shards, torch only has a fused step for Adam.
            fused = fused and not sharded
            return torch.optim.SGD(group, lr=0.0, momentum=spec.momentum, fused=fused)
        case AdamW8bit() if sharded:
            raise Unsupported(
                "bitsandbytes' 8-bit AdamW cannot work on shards of parameters: use another "
                "optimizer with FSDP, or use DDP"
            )
        case AdamW8bit():
            return _eight_bit(spec, parameters, device)
        case _:  # a technique that builds its own optimizer
            return spec.build(module, device, sharded)


def _group(parameters: Iterable[nn.Parameter], rate_factor: float = 1.0) -> list[dict[str, Any]]:
    """Groups parameters by the mesh that shards them, since no kernel takes several meshes."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(mesh_of(parameter), []).append(parameter)
    return [{"params": some, "rate_factor": rate_factor} for some in found.values()]


def _adam_arguments(spec: AdamW | AdamW8bit) -> dict[str, Any]:
    return {"lr": 0.0, "betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}


def _eight_bit(
    spec: AdamW8bit, parameters: Iterable[nn.Parameter], device: torch.device
) -> Optimizer:
    try:
        # Imported late, because the library is optional and takes a second.
        from transformer_core.training.eight_bit_adamw import BlockwiseAdamW
    except ImportError as error:
        raise Unsupported(
            f"8-bit AdamW needs bitsandbytes 0.50 or newer ({error}): "
            "pip install 'bitsandbytes>=0.50'"
        ) from error
    arguments = _adam_arguments(spec)
    try:
        # Without a kernel for the device, the import succeeds, but a step fails.
        probe = nn.Parameter(torch.zeros(4096, device=device))
        probe.grad = torch.zeros_like(probe)
        BlockwiseAdamW([probe], **arguments).step()
    except (RuntimeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise Unsupported(f"bitsandbytes cannot take a step on {device}: {reason}") from error
    return BlockwiseAdamW(_group(parameters), **arguments)


MASTER = "master"  # name of the 32-bit weights in the state of a parameter


class MasterAdamW(Optimizer):
    """AdamW (arXiv 1711.05101): 12 bytes of state per parameter, of which 4 are its master.

    Like torch's fused kernels it divides gradients in place by ``grad_scale``, if set. On a CPU one
    compiled loop reads the gradient and writes everything else; on other devices torch's fused
    kernel works on 32-bit copies.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self, parameters: Any, masters: Mapping[nn.Parameter, Tensor], **defaults: Any
    ) -> None:
        super().__init__(parameters, defaults | {"fused": True})  # steps are counted on the device
        for group in self.param_groups:
            for parameter in group["params"]:
                master = masters[parameter]
                self.state[parameter] = {
                    "step": torch.zeros((), device=master.device),
                    MASTER: master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        scale = getattr(self, "grad_scale", None)
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moved:
                continue
            gradients = [parameter.grad for parameter in moved]
            states = [self.state[parameter] for parameter in moved]
            torch._foreach_add_([state["step"] for state in states], 1)
            update = in_one_loop if device_kind(moved[0]) == "cpu" else by_torch
            update(moved, gradients, states, group, scale)


def masters_of(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    """The 32-bit masters that ``optimizer`` keeps, by parameter."""
    return {
        parameter: state[MASTER] for parameter, state in optimizer.state.items() if MASTER in state
    }


def by_torch(
    weights: list[nn.Parameter],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
    group: Mapping[str, Any],
    scale: Tensor | None = None,
) -> None:
    """Updates the masters with torch's fused kernel and 32-bit copies of the gradients, then rounds
    them to the weights."""
    if scale is not None:
        torch._foreach_div_(gradients, scale)
    masters = [state[MASTER] for state in states]
    wide = [torch.empty_like(master) for master in masters]
    torch._foreach_copy_(wide, gradients)
    torch._fused_adamw_(
        masters,
        wide,
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
    torch._foreach_copy_([weight.data for weight in weights], masters)


def in_one_loop(
    weights: list[nn.Parameter],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
    group: Mapping[str, Any],
    scale: Tensor | None = None,
) -> None:
    """The same on a CPU, in one pass over each parameter."""
    # Imported late, because the compiler takes half a second in every process.
    from transformer_core.models import compiled_loops

    for weight, gradient, state in zip(weights, gradients, states, strict=True):
        arrays = (weight, gradient, state[MASTER], state["exp_avg"], state["exp_avg_sq"])
        factor = 1.0 if scale is None else 1 / float(scale)
        compiled_loops.update_masters(arrays, int(state["step"]), group, factor)


def learning_rate(spec: AnySchedule, step: int, steps: int, d_model: int) -> float:
    """Learning rate of optimizer step ``step`` (from 1) of ``steps``.

    Noam: arXiv 1706.03762, section 5.3. Cosine: arXiv 1608.03983 without restarts.
    """
    if isinstance(spec, Noam):
        return spec.factor * d_model**-0.5 * min(step**-0.5, step * spec.warmup**-1.5)
    if step <= spec.warmup:
        return spec.peak * step / spec.warmup
    left = (steps - step) / max(1, steps - spec.warmup)
    match spec:
        case Constant():
            return spec.peak
        case Linear():
            return spec.peak * left
        case Cosine():
            return spec.peak * 0.5 * (1.0 - math.cos(math.pi * left))
