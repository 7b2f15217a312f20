"""Autocast around the model to bfloat16 or float16, its outputs cast back to float32.

PyTorch, "Automatic mixed precision": matrix products and convolutions in 16 bits, the rest and
the weights in float32. Casting the outputs back keeps the script's own loss in float32, as
accelerate does.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_core.tune.techniques.technique import Rounding, Technique

if TYPE_CHECKING:
    from torch import nn

    from transformer_core.tune.facts import Watch
    from transformer_core.tune.source import Source


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
        head = f'with torch.autocast("{kind}", dtype=torch.bfloat16):'
        return source.around_call(head, "RESULT = RESULT.float()")

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return [
            f'Call the model under torch.autocast("{facts["device"]}", dtype=torch.bfloat16), and '
            "its outputs' .float() before the loss."
        ]


def as_float32(value: Any) -> Any:
    """``value`` with its tensors of 16 bits in float32, in whatever they are nested."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(as_float32(each) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(as_float32(each) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # An output of transformers is a dictionary too: assigning keeps both in step.
        for field in dataclasses.fields(value):
            setattr(value, field.name, as_float32(getattr(value, field.name)))
        return value
    if isinstance(value, dict):
        for key in value:
            value[key] = as_float32(value[key])
    return value


class Fp16(Bf16):
    name = "fp16"
    words = "float16 autocast around the model, with a scaled loss"
    # As many bits of precision as TensorFloat-32.
    rounding: ClassVar[Rounding] = "tf32"
    format = "float16"
    settings: ClassVar[dict[str, Any]] = {"scaled": True}
    usual = False

    def edit(self, source: "Source", facts: dict[str, Any]) -> bool:
        return False

    def lines(self, facts: dict[str, Any]) -> list[str]:
        kind = facts["device"]
        return [
            f'Call the model under torch.autocast("{kind}", dtype=torch.float16), and scale the loss '
            f'by torch.amp.GradScaler("{kind}", init_scale=1024): scaler.scale(loss).backward(), '
            "scaler.step(optimizer) and scaler.update()."
        ]


ALL = [Bf16(), Fp16()]
