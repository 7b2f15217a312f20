"""Number formats with fewer bits: autocast to 16 bits, and products in fewer bits than their operands."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transformer_core.machine.hardware import cpu_features
from transformer_core.tune.boundaries import wrap
from transformer_core.tune.facts import AMPERE, Watch, device_of
from transformer_core.tune.nested import mapped
from transformer_core.tune.source import Source
from transformer_core.tune.techniques.technique import Rounding, Technique

LOSS_SCALE = 1024.0  # torch's default of 65536 overflows in the first steps of many models


class Bf16(Technique):
    """Autocast around the model, with outputs cast back to float32.

    PyTorch, "Automatic mixed precision": matrix products and convolutions in 16 bits, the rest and
    the weights in float32. Casting the outputs back keeps the script's own loss in float32, as
    accelerate does.
    """

    name = "bf16"
    words = "bfloat16 autocast around the model"
    group = "format"
    rounding: ClassVar[Rounding] = "bfloat16"
    format: ClassVar[torch.dtype] = torch.bfloat16
    idle = "the training calls no torch.nn.Module that is in training mode (.train())"
    advice = (
        'Call the model under torch.autocast("{device}", dtype=torch.bfloat16), and its outputs\' '
        ".float() before the loss."
    )
    for_trainer = "Give TrainingArguments bf16=True; scripts that parse them take --bf16."

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["autocast"]:
            return "the script runs its model under autocast already"
        if facts["formats"] != ["float32"]:
            return f"the weights are {', '.join(facts['formats'])}, not float32"
        return None

    def module(self, module: nn.Module) -> None:
        kind = device_of(module).type

        def in_16_bits(call: Any, *args: Any, **kwargs: Any) -> Any:
            if not (module.training and torch.is_grad_enabled()):
                return call(*args, **kwargs)
            self.applied += 1
            with torch.autocast(kind, dtype=self.format):
                found = call(*args, **kwargs)
            return mapped(found, _as_float32)

        wrap(module, in_16_bits)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        arguments = ["TrainingArguments", "Seq2SeqTrainingArguments"]
        if source.keyword("arguments", arguments, {"bf16": "True"}) or source.keyword(
            "accelerator", ["Accelerator"], {"mixed_precision": '"bf16"'}
        ):
            return True
        if len(facts["modules"]) > 1:
            return False  # Each of them is called somewhere else.
        head = f'with torch.autocast("{facts["device"]}", dtype=torch.bfloat16):'
        return source.around_call(head, ".float()", facts["result"])


class Fp16(Bf16):
    """Gradients are scaled, as :class:`torch.amp.GradScaler` does, but without a change to the script's
    loop: they are multiplied where they enter the model, and divided where they leave it, at its weights
    and inputs. The script sees the true gradients, for instance when it clips them."""

    name = "fp16"
    words = "float16 autocast around the model, with scaled gradients"
    rounding = "tf32"  # As many bits of precision as TensorFloat-32.
    format = torch.float16
    # The loop of a factory has a scaler.
    settings: ClassVar[dict[str, Any]] = {"scaled": True}
    advice = (
        'Call the model under torch.autocast("{device}", dtype=torch.float16), and scale the loss '
        f'by torch.amp.GradScaler("{{device}}", init_scale={LOSS_SCALE:g}): '
        "scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update()."
    )
    for_trainer = ""

    def __init__(self) -> None:
        self._divided: set[int] = set()

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cpu" and self.name not in facts["named"]:
            return f"few CPUs multiply in float16: to try it, name it (--only {self.name})"
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

        def scaled(call: Any, *args: Any, **kwargs: Any) -> Any:
            if not (module.training and torch.is_grad_enabled()):
                return call(*args, **kwargs)
            found = call(*mapped(args, leaving), **mapped(kwargs, leaving))
            return mapped(found, entering)

        wrap(module, scaled)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return False


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


class Bf16Matmul(Technique):
    """Lower precision inside float32 matrix products: bfloat16 on CPUs with AMX
    (``torch.set_float32_matmul_precision``)."""

    name = "bf16_matmul"
    words = "bfloat16 inside float32 matrix products"
    group = "format"
    rounding: ClassVar[Rounding] = "bfloat16"
    precision = "medium"
    advice = 'Begin with torch.set_float32_matmul_precision("{self.precision}").'

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] == "cuda":
            return "on GPUs torch has no bfloat16 inside float32 products: this is tf32"
        if "amx_bf16" not in cpu_features():
            return "torch uses bfloat16 inside float32 products only on CPUs with AMX"
        return None

    def prepare(self, watch: Watch) -> None:
        torch.set_float32_matmul_precision(self.precision)

    def edit(self, source: Source, facts: dict[str, Any]) -> bool:
        return source.after_imports([f'torch.set_float32_matmul_precision("{self.precision}")'])


class Tf32(Bf16Matmul):
    name = "tf32"
    words = "TensorFloat-32 inside float32 matrix products"
    rounding = "tf32"
    precision = "high"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "TensorFloat-32 needs a GPU"
        if tuple(facts["capability"]) < AMPERE:
            found = ".".join(map(str, facts["capability"]))
            return f"TensorFloat-32 needs compute capability 8.0; this GPU has {found}"
        return None


CAPABILITY = (8, 9)  # compute capability of the first GPUs that multiply float8: Ada
MULTIPLE = 16  # rows and columns of a product are a multiple of this


class Float8(Technique):
    """By torchao. Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433)."""

    name = "float8"
    words = "products of linear layers in float8"
    group = "format"
    place = 0
    advice = (
        "Call torchao.float8.convert_to_float8_training(model, config=torchao.float8.Float8LinearConfig("
        f"pad_inner_dim=True)) before the first step, for linear layers whose sizes are multiples of {MULTIPLE}."
    )
    rounding = "float8"
    idle = f"no linear layer has sizes that are multiples of {MULTIPLE}"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["device"] != "cuda":
            return "products in float8 need a GPU"
        if tuple(facts["capability"]) < CAPABILITY:
            found = ".".join(map(str, facts["capability"]))
            return f"products in float8 need compute capability 8.9; this GPU has {found}"
        if find_spec("torchao") is None:
            return "needs torchao: pip install torchao"
        return None

    def module(self, module: nn.Module) -> None:
        library = import_module("torchao.float8")
        # Products for gradients of weights sum over the tokens of a batch, which may be any number.
        config = library.Float8LinearConfig(pad_inner_dim=True)

        def fits(part: Any, name: str) -> bool:
            wide = part.in_features % MULTIPLE == 0 and part.out_features % MULTIPLE == 0
            self.applied += wide
            return bool(wide)

        library.convert_to_float8_training(module, config=config, module_filter_fn=fits)
