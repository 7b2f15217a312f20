"""Layers by torch.compile: one graph for each kind of layer, of any lengths.

The whole model would be one large graph, which takes the longer to compile the more layers it has.
Layers of a kind share what was compiled, and torch keeps it on disk for the next process.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from schemas.errors import Unsupported
from transformer_core.model.one_pass_loss import watched


def compile_layers(*layers: nn.Module, backend: str = "inductor") -> None:
    """Let ``layers`` be compiled when they are first called in training."""
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)


def compiled_or_plain(layer: nn.Module) -> Callable[..., Tensor]:
    """What calls ``layer``: compiled in training; as it is in evaluation, whose caches and single
    tokens would be graphs of their own, and where something watches every operation."""
    return _compiled(layer) if layer.training and not watched() else layer.forward


def _compiled(layer: nn.Module) -> Callable[..., Tensor]:
    def call(*inputs: Any) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException  # here: it takes half a second

        try:
            result: Tensor = layer(*inputs)
        except TorchDynamoException as error:
            reason = str(error).strip().split("\n")[0]
            raise Unsupported(f"model.compile: layers cannot be compiled here: {reason}") from error
        return result

    return call


def compile_seconds(model: nn.Module) -> float | None:
    """What compiling the layers of ``model`` has taken in this process; null where none are."""
    if not getattr(model, "compiled", False):
        return None
    from torch._dynamo.utils import compilation_time_metrics

    return float(sum(compilation_time_metrics.get("_compile.compile_inner", [])))
