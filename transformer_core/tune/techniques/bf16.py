"""Autocast around the model to bfloat16 or float16, its outputs cast back to float32.

PyTorch, "Automatic mixed precision": matrix products and convolutions in 16 bits, the rest and
the weights in float32. Casting the outputs back keeps the script's own loss in float32, as
accelerate does.

Gradients in float16 are scaled, as :class:`torch.amp.GradScaler` does. A script's loop stays as it is:
they are multiplied where they enter the model, and divided where they leave it, at its weights and
inputs. So whatever the script does with them, such as clipping, sees them as they are.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_core.tune.techniques.technique import Rounding, Technique

if TYPE_CHECKING:
    import torch
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source

LOSS_SCALE = 1024.0
"""torch's own, 65536, overflows in the first steps of many models."""


class Bf16(Technique):
    name = "bf16"
    words = "bfloat16 autocast around the model"
    group = "format"
    rounding: ClassVar[Rounding] = "bfloat16"
    format: ClassVar[str] = "bfloat16"

    def __init__(self) -> None:
        self.calls = 0

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["autocast"]:
            return "the script runs its model under autocast already"
        if facts["formats"] != ["float32"]:
            return f"the weights are {', '.join(facts['formats'])}, not float32"
        return None

    def module(self, module: "nn.Module") -> None:
        import torch

        from transformer_core.tune.boundaries import wrap
        from transformer_core.tune.facts import device_of

        kind = device_of(module).type

        def around(call: Any) -> Any:
            def in_16_bits(*args: Any, **kwargs: Any) -> Any:
                if not (module.training and torch.is_grad_enabled()):
                    return call(*args, **kwargs)
                self.calls += 1
                with torch.autocast(kind, dtype=getattr(torch, self.format)):
                    found = call(*args, **kwargs)
                return as_float32(found)

            return in_16_bits

        wrap(module, around)

    def without_effect(self, watch: "Watch") -> str | None:
        return None if self.calls else "the training calls no torch.nn.Module"

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        kind = facts["device"]
        if source.keyword(
            "arguments", ["TrainingArguments", "Seq2SeqTrainingArguments"], bf16="True"
        ):
            return True
        if source.keyword("accelerator", ["Accelerator"], mixed_precision='"bf16"'):
            return True
        if len(facts["modules"]) > 1:
            return False  # Each of them is called somewhere else.
        head = f'with torch.autocast("{kind}", dtype=torch.bfloat16):'
        return source.around_call(head, "RESULT = RESULT.float()", facts["result"])

    def lines(self, facts: dict[str, Any]) -> list[str]:
        if facts["caller"] in ("transformers", "trl"):
            return ["Give TrainingArguments bf16=True; scripts that parse them take --bf16."]
        return [
            f'Call the model under torch.autocast("{facts["device"]}", dtype=torch.bfloat16), and '
            "its outputs' .float() before the loss."
        ]


def as_float32(value: Any) -> Any:
    """``value`` with its tensors of 16 bits in float32, in whatever they are nested."""
    import torch

    narrow = (torch.bfloat16, torch.float16)
    return _mapped(value, lambda tensor: tensor.float() if tensor.dtype in narrow else tensor)


def _mapped(value: Any, change: "Callable[[torch.Tensor], torch.Tensor]") -> Any:
    """``value`` with ``change`` made to each of its tensors, in whatever they are nested."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, change) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # An output of transformers is a dictionary too: assigning keeps both in step.
        for field in dataclasses.fields(value):
            setattr(value, field.name, _mapped(getattr(value, field.name), change))
        return value
    if isinstance(value, dict):
        for key in value:
            value[key] = _mapped(value[key], change)
    return value


def _with_gradient(scale: float, tensor: "torch.Tensor") -> "torch.Tensor":
    """``tensor``, whose gradient is multiplied by ``scale`` on its way back."""
    if not (tensor.requires_grad and tensor.is_floating_point()):
        return tensor
    from transformer_core.tune.boundaries import ScaledGradient

    scaled: torch.Tensor = ScaledGradient.apply(tensor, scale)
    return scaled


class Fp16(Bf16):
    name = "fp16"
    words = "float16 autocast around the model, with scaled gradients"
    # As many bits of precision as TensorFloat-32.
    rounding: ClassVar[Rounding] = "tf32"
    format = "float16"
    # A factory's loop has a scaler.
    settings: ClassVar[dict[str, Any]] = {"scaled": True}
    needs_factory = False

    def __init__(self) -> None:
        super().__init__()
        self._divided: set[int] = set()

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and self.name not in facts["named"]:
            return "few CPUs multiply in float16: name it to try it"
        return super().obstacle(facts)

    def module(self, module: "nn.Module") -> None:
        import torch

        from transformer_core.tune.boundaries import wrap

        super().module(module)
        if self.facts["factory"]:
            return
        for parameter in module.parameters():
            if parameter.requires_grad and id(parameter) not in self._divided:
                self._divided.add(id(parameter))
                parameter.register_hook(lambda gradient: gradient / LOSS_SCALE)

        def around(call: Any) -> Any:
            def scaled(*args: Any, **kwargs: Any) -> Any:
                if not (module.training and torch.is_grad_enabled()):
                    return call(*args, **kwargs)
                leaving, entering = (
                    partial(_with_gradient, s) for s in (1 / LOSS_SCALE, LOSS_SCALE)
                )
                found = call(*_mapped(args, leaving), **_mapped(kwargs, leaving))
                return _mapped(found, entering)

            return scaled

        wrap(module, around)

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        kind = facts["device"]
        return [
            f'Call the model under torch.autocast("{kind}", dtype=torch.float16), and scale the loss '
            f'by torch.amp.GradScaler("{kind}", init_scale={LOSS_SCALE:g}): '
            "scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update()."
        ]


ALL = [Bf16(), Fp16()]
