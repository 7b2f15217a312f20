"""Layers by torch.compile: one graph for each kind of layer, of any lengths.

The whole model would be one large graph, which takes the longer to compile the more layers it has.
Layers of a kind share what was compiled, and torch keeps it on disk for the next process.

With ``graphs`` torch also records each layer as a CUDA graph, by its mode ``reduce-overhead``: one
launch in place of some dozens, which matters where kernels are shorter than their launch. A graph
is recorded for every shape; the compiled code is the same for all. What a graph gives lies in its
own memory and is written over by the next step, so that gradients cannot be added up over several
backward passes, and DDP's buckets would be copied anew.
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
    """Let ``layers`` be compiled, as ``kind`` says, when they are first called in training."""
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
    """Returns a function that calls ``layer``: compiled in training, as ``kind`` says; plain in
    evaluation, whose caches and single tokens would be graphs of their own, and where every
    operation is observed. Of the activations, torch keeps a ``kept_share`` at most, if it can.
    Unsupported where it cannot be compiled, or graphs are not CUDA's."""
    if kind == "none":
        return layer
    compiles = layer.training and not watched()
    return _compiled(kind, layer, kept_share) if compiles else layer.forward


def _compiled(kind: Compiling, layer: nn.Module, kept_share: float) -> Callable[..., Tensor]:
    def call(*inputs: Any) -> Tensor:
        if kind == "graphs" and device_kind(inputs[0]) != "cuda":
            raise Unsupported(
                "model.compile: graphs are CUDA graphs, which hold launches of a GPU; this run is "
                f"on a {device_kind(inputs[0])}"
            )
        if kind == "graphs":
            shapes = tuple(tuple(x.shape) for x in inputs if isinstance(x, Tensor))
            _calls.setdefault(layer, Counter())[shapes] += 1
        # Here, because they take half a second to import.
        from torch._dynamo.exc import TorchDynamoException
        from torch._functorch.config import patch

        if kept_share < 1 and _drops(layer):
            raise Unsupported(
                "model.kept_share: torch draws other masks of dropout where it computes compiled "
                "layers once more, so the gradient would be wrong; take dropout: 0, or "
                "checkpoint: products"
            )
        try:
            with patch(activation_memory_budget=kept_share):
                result: Tensor = layer(*inputs)
        except TorchDynamoException as error:
            reason = str(error).strip().split("\n")[0]
            raise Unsupported(f"model.compile: {kind} cannot be compiled here: {reason}") from error
        return result

    return call


def _drops(layer: nn.Module) -> bool:
    """Whether anything drops elements (https://github.com/pytorch/pytorch/issues/190758)."""
    found = (getattr(part, name, 0.0) for part in layer.modules() for name in ("p", "dropout"))
    return any(isinstance(p, float) and p > 0 for p in found)


UNPLAYED = 2
"""Calls of a layer with inputs of new shapes that play no graph: one warms up, one records."""
_calls: WeakKeyDictionary[nn.Module, Counter[Any]] = WeakKeyDictionary()
"""Of each layer, its calls by shapes."""


def replayed_share(model: nn.Module) -> float | None:
    """Share of the calls of layers so far that played a recorded graph; null if none are
    recorded."""
    layers = [_calls[layer] for layer in model.modules() if layer in _calls]
    counts = [count for calls in layers for count in calls.values()]
    if not counts:
        return None
    return sum(max(0, count - UNPLAYED) for count in counts) / sum(counts)


def compile_seconds(model: nn.Module) -> float | None:
    """Seconds spent in this process compiling the layers of ``model``; null if none are
    compiled."""
    if getattr(model, "compile_kind", "none") == "none":
        return None
    from torch._dynamo.utils import compilation_time_metrics

    return float(sum(compilation_time_metrics.get("_compile.compile_inner", [])))
