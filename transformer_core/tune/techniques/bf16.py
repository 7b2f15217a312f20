"""Autocast around the model to bfloat16 or float16, with outputs cast back to float32.

PyTorch, "Automatic mixed precision": matrix products and convolutions in 16 bits, the rest and
the weights in float32. Casting the outputs back keeps the script's own loss in float32, as
accelerate does.

Gradients in float16 are scaled, as :class:`torch.amp.GradScaler` does, but without a change to the
script's loop: they are multiplied where they enter the model, and divided where they leave it, at its
weights and inputs. The script sees the true gradients, for instance when it clips them.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transformer_core.tune.boundaries import wrap
from transformer_core.tune.facts import device_of
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Rounding, Technique

LOSS_SCALE = 1024.0
"""torch's default of 65536 overflows in the first steps of many models."""


class Bf16(Technique):
    name = "bf16"
    words = "bfloat16 autocast around the model"
    group = "format"
    rounding: ClassVar[Rounding] = "bfloat16"
    format: ClassVar[torch.dtype] = torch.bfloat16
    idle = "the training calls no torch.nn.Module"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["autocast"]:
            return "the script runs its model under autocast already"
        if facts["formats"] != ["float32"]:
            return f"the weights are {', '.join(facts['formats'])}, not float32"
        return None

    def module(self, module: nn.Module) -> None:
        kind = device_of(module).type

        def around(call: Any) -> Any:
            def in_16_bits(*args: Any, **kwargs: Any) -> Any:
                if not (module.training and torch.is_grad_enabled()):
                    return call(*args, **kwargs)
                self.applied += 1
                with torch.autocast(kind, dtype=self.format):
                    found = call(*args, **kwargs)
                return _mapped(found, _as_float32)

            return in_16_bits

        wrap(module, around)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        arguments = ["TrainingArguments", "Seq2SeqTrainingArguments"]
        if source.keyword("arguments", arguments, bf16="True"):
            return True
        if source.keyword("accelerator", ["Accelerator"], mixed_precision='"bf16"'):
            return True
        if len(facts["modules"]) > 1:
            return False  # Each of them is called somewhere else.
        head = f'with torch.autocast("{facts["device"]}", dtype=torch.bfloat16):'
        return source.around_call(head, "RESULT = RESULT.float()", facts["result"])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        if facts["caller"] in ("transformers", "trl"):
            return ["Give TrainingArguments bf16=True; scripts that parse them take --bf16."]
        return [
            f'Call the model under torch.autocast("{facts["device"]}", dtype=torch.bfloat16), and '
            "its outputs' .float() before the loss."
        ]


class Fp16(Bf16):
    name = "fp16"
    words = "float16 autocast around the model, with scaled gradients"
    # As many bits of precision as TensorFloat-32.
    rounding: ClassVar[Rounding] = "tf32"
    format = torch.float16
    # The loop of a factory has a scaler.
    settings: ClassVar[dict[str, Any]] = {"scaled": True}

    def __init__(self) -> None:
        self._divided: set[int] = set()

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and self.name not in facts["named"]:
            return f"few CPUs multiply in float16: name {self.name} to try it"
        return super().obstacle(facts)

    def module(self, module: nn.Module) -> None:
        super().module(module)
        if self.facts["factory"]:
            return
        for parameter in module.parameters():
            if parameter.requires_grad and id(parameter) not in self._divided:
                self._divided.add(id(parameter))
                parameter.register_hook(lambda gradient: gradient / LOSS_SCALE)
        leaving = partial(_with_gradient, 1 / LOSS_SCALE)
        entering = partial(_with_gradient, LOSS_SCALE)

        def around(call: Any) -> Any:
            def scaled(*args: Any, **kwargs: Any) -> Any:
                if not (module.training and torch.is_grad_enabled()):
                    return call(*args, **kwargs)
                found = call(*_mapped(args, leaving), **_mapped(kwargs, leaving))
                return _mapped(found, entering)

            return scaled

        wrap(module, around)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        kind = facts["device"]
        return [
            f'Call the model under torch.autocast("{kind}", dtype=torch.float16), and scale the loss '
            f'by torch.amp.GradScaler("{kind}", init_scale={LOSS_SCALE:g}): '
            "scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update()."
        ]


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with ``change`` applied to each of its tensors, however they are nested. Outputs of
    transformers and dictionaries are changed in place."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, change) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # An output of transformers is also a dictionary: assignment keeps both in step.
        for field in dataclasses.fields(value):
            setattr(value, field.name, _mapped(getattr(value, field.name), change))
        return value
    if isinstance(value, dict):
        for key in value:
            value[key] = _mapped(value[key], change)
    return value


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _with_gradient(scale: float, tensor: Tensor) -> Tensor:
    """``tensor``, whose gradient is multiplied by ``scale`` in the backward pass."""
    if not (tensor.requires_grad and tensor.is_floating_point()):
        return tensor
    scaled: Tensor = _ScaledGradient.apply(tensor, scale)
    return scaled


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose backward pass multiplies the gradient by a number."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.scale, None
