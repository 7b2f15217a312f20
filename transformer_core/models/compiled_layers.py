"""Compiles layers with torch.compile: one graph for each kind of layer, for all lengths.

Compiling the whole model would take longer the more layers it has. Layers of one kind share their
compiled code, and torch keeps it on disk for the next process.

With ``graphs`` torch also records each layer as a CUDA graph, by its mode ``reduce-overhead``: one
launch replaces some dozens, which matters if kernels are shorter than their launches. torch records
a graph for every shape; the compiled code is the same for all. The next step overwrites the results
of a graph, so gradients cannot accumulate over several backward passes, and DDP would have to copy
its buckets.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from schemas.config.model import Compiling
from schemas.errors import Unsupported
from transformer_core.models.device_kind import device_kind
from transformer_core.models.loss import watched


def compile_layers(kind: Compiling, *layers: nn.Module, backend: str = "inductor") -> None:
    """Prepares ``layers`` for compilation, as ``kind`` says, at their first call in training."""
    options: dict[str, Any] = {"backend": backend}
    if kind == "graphs":
        options = {"mode": "reduce-overhead"}
    elif kind == "autotuned":
        options = {"mode": "max-autotune-no-cudagraphs"}
    for layer in layers if kind != "none" else ():
        layer.compile(dynamic=True, **options)


def compiled_or_plain(
    kind: Compiling, layer: nn.Module, kept_share: float = 1.0
) -> Callable[..., Tensor]:
    """Returns a function that calls ``layer``: compiled in training, as ``kind`` says; uncompiled in
    evaluation, whose caches and single tokens would need further graphs, and if a mode observes
    every operation. torch keeps at most a ``kept_share`` of the activations, if it can. The call
    raises Unsupported if compilation fails, or for CUDA graphs on another device."""
    if kind == "none":
        return layer
    compiles = layer.training and not watched()
    return _compiled(kind, layer, kept_share) if compiles else layer.forward


def _compiled(kind: Compiling, layer: nn.Module, kept_share: float) -> Callable[..., Tensor]:
    def call(*inputs: Any) -> Tensor:
        if kind == "graphs" and device_kind(inputs[0]) != "cuda":
            raise Unsupported(
                "model.compile: graphs needs a GPU, since CUDA graphs record its launches; this run "
                f"is on a {device_kind(inputs[0])}"
            )
        if kind == "graphs":
            shapes = tuple(tuple(x.shape) for x in inputs if isinstance(x, Tensor))
            _calls.setdefault(layer, Counter())[shapes] += 1
        # Imported late, because they take half a second.
        from torch._dynamo.exc import TorchDynamoException
        from torch._functorch.config import patch

        if kept_share < 1 and _drops(layer):
            raise Unsupported(
                "model.kept_share: torch draws different dropout masks when it recomputes compiled "
                "layers, so the gradient would be wrong; set dropout: 0, or checkpoint: products"
            )
        try:
            with patch(activation_memory_budget=kept_share):
                result: Tensor = layer(*inputs)
        except TorchDynamoException as error:
            reason = str(error).strip().split("\n\n")[0]
            if "out of memory" in reason:
                raise
            reason = " ".join(reason.split())
            raise Unsupported(f"model.compile: {kind} cannot be compiled here: {reason}") from error
        return result

    return call


def _drops(layer: nn.Module) -> bool:
    """Whether a layer has dropout (https://github.com/pytorch/pytorch/issues/190758)."""
    found = (getattr(part, name, 0.0) for part in layer.modules() for name in ("p", "dropout"))
    return any(isinstance(p, float) and p > 0 for p in found)


UNPLAYED = 2
"""Calls of a layer with a new shape that replay no graph: one warms up, one records."""
_calls: WeakKeyDictionary[nn.Module, Counter[Any]] = WeakKeyDictionary()
"""The number of calls of each layer, by shapes."""


def replayed_share(model: nn.Module) -> float | None:
    """Share of the calls of layers so far that replayed a recorded graph; None without graphs."""
    layers = [_calls[layer] for layer in model.modules() if layer in _calls]
    counts = [count for calls in layers for count in calls.values()]
    if not counts:
        return None
    return sum(max(0, count - UNPLAYED) for count in counts) / sum(counts)


def compile_seconds(model: nn.Module) -> float | None:
    """Seconds that this process spent compiling the layers of ``model``; None if it does not."""
    if getattr(model, "compile_kind", "none") == "none":
        return None
    from torch._dynamo.utils import compilation_time_metrics

    return float(sum(compilation_time_metrics.get("_compile.compile_inner", [])))
