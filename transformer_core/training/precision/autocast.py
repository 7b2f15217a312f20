"""Number formats of the forward and backward pass."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schemas.config.training import AnyPrecision, Clipping, Fp16
from transformer_core.parallel.strategies.sharded_weights import is_sharded, whole
from transformer_core.training.precision.matmul_mode import set_matmul

_EPSILON = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm."""


class Precision:
    """32-bit weights and activations; other precisions override what they do differently."""

    def __init__(self, clipping: Clipping = "apart") -> None:
        """``clipping``: whether the optimizer's kernel scales gradients down, where it can."""
        self.clipping = clipping

    def convert(self, model: nn.Module) -> Mapping[nn.Parameter, Tensor]:
        """Put ``model`` into the format of its weights; what those were, where it had more bits."""
        return {}

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context of the forward pass."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of ``loss`` to the parameters' gradients."""
        loss.backward()

    def step(
        self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip_norm: float
    ) -> torch.Tensor:
        """Clip, update, and return the gradient's norm before clipping, on the device.

        ``clip_norm`` of 0 does not clip.
        """
        self.unscale(optimizer)
        # Of parameters in shards, each rank has a part of the norm.
        weights = [parameter for parameter in parameters if parameter.grad is not None]
        part = _norm([w.grad for w in weights if w.grad is not None])
        norm = whole(part)
        if not clip_norm:
            self.update(optimizer, norm)
        elif self.clipping == "folded" and _divides(optimizer, weights):
            # The kernel divides each gradient by this as it reads it.
            optimizer.grad_scale = ((norm + _EPSILON) / clip_norm).clamp(min=1.0)  # type: ignore[attr-defined]
            self.update(optimizer, norm)
            del optimizer.grad_scale  # type: ignore[attr-defined]
        else:
            nn.utils.clip_grads_with_norm_(weights, clip_norm, part)
            self.update(optimizer, norm)
        return norm

    def unscale(self, optimizer: Optimizer) -> None:
        """Take any factor that :meth:`backward` put on the loss out of the gradients."""

    def update(self, optimizer: Optimizer, norm: torch.Tensor) -> None:
        """Apply the gradients, whose norm was ``norm`` before clipping."""
        optimizer.step()

    def report(self) -> dict[str, Any] | None:
        """What there is to tell after training, as JSON."""
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, as JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state` gave."""


class Autocast(Precision):
    """Matrix products in a 16-bit format, weights and reductions in 32 bit."""

    def __init__(self, device_type: str, dtype: torch.dtype, clipping: Clipping = "apart") -> None:
        super().__init__(clipping)
        self.device_type = device_type
        self.dtype = dtype

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype)


class LowWeights(Precision):
    """bfloat16 throughout; the optimizer keeps the weights in 32 bits."""

    def convert(self, model: nn.Module) -> Mapping[nn.Parameter, Tensor]:
        low: dict[nn.Parameter, nn.Parameter] = {}
        # New parameters, of which those that are tied stay so: fake ones cannot be changed.
        for module in model.modules():
            for name, old in module._parameters.items():
                if old is not None and old not in low:
                    low[old] = nn.Parameter(old.detach().bfloat16(), old.requires_grad)
                module._parameters[name] = None if old is None else low[old]
        return {new: old.detach() for old, new in low.items() if old.requires_grad}


class ScaledAutocast(Autocast):
    """float16 autocast with a loss scale (Micikevicius et al., ICLR 2018, arXiv 1710.03740).

    The scale lifts small gradients into the range of float16. Where it makes one overflow, that
    step is skipped on every rank and the scale is halved. The scale has the optimizer's factor for
    itself, so gradients are clipped apart.
    """

    def __init__(self, device: torch.device, spec: Fp16) -> None:
        super().__init__(device.type, torch.float16)
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=spec.initial_scale, growth_interval=spec.growth_interval
        )
        # Counted on the device: reading it at every step would make the host wait.
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def update(self, optimizer: Optimizer, norm: torch.Tensor) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()
        self.skipped += ~norm.isfinite()

    def report(self) -> dict[str, Any] | None:
        return {"skipped_steps": int(self.skipped), "loss_scale": self.scaler.get_scale()}

    def state(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict(), "skipped_steps": int(self.skipped)}

    def load(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state["scaler"])
        self.skipped.fill_(state["skipped_steps"])


def build_precision(
    spec: AnyPrecision, device: torch.device, clipping: Clipping = "apart"
) -> Precision:
    """The precision that ``spec`` names, which is switched on for the whole process.

    Raises Unsupported where the device cannot compute in it.
    """
    set_matmul(spec, device)
    numbers = spec.numbers
    if isinstance(spec, Fp16):
        return ScaledAutocast(device, spec)
    if numbers.masters:
        return LowWeights(clipping)
    if numbers.results:
        return Autocast(device.type, torch.bfloat16, clipping)
    return Precision(clipping)


def _norm(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, of those in 16 bits with the sum in 32."""
    if all(g.dtype != torch.bfloat16 for g in gradients):
        return nn.utils.get_total_norm(gradients)
    norms = torch._foreach_norm(gradients, 2, torch.float32)
    return torch.linalg.vector_norm(torch.stack(norms))


def _divides(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> bool:
    """Whether the optimizer's kernel can divide gradients by a factor of its own.

    torch's fused kernels can, which have it for loss scales; not those of shards.
    """
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return fused and not any(map(is_sharded, weights))
