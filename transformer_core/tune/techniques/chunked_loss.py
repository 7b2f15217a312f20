"""Output layer and cross-entropy a few hundred tokens at a time: the logits never all exist at once.

In place of logits the output layer returns an object that can compute them. The script reshapes it
and passes it to ``F.cross_entropy``, a call that the object handles itself
(``__torch_function__``); for every other operation it computes the logits. Gradients are computed in
the forward pass, chunk by chunk (as in Hsu et al., Liger Kernel, 2024).
"""

from collections.abc import Callable
from inspect import unwrap
from itertools import islice
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_core.tune.boundaries import wrap
from transformer_core.tune.facts import Watch
from transformer_core.tune.techniques.technique import Technique

ROWS = 512  # tokens whose logits exist at a time


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of the cross-entropies of hidden [n, d], weight [v, d], bias [v] or None, labels [n]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        ignored: int,
        smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        wide, narrow = weight.shape[0], weight.to(dtype)
        total = torch.zeros((), device=hidden.device)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(hidden), ROWS):
            rows = slice(start, start + ROWS)
            some, label = hidden[rows].to(dtype), labels[rows]
            logits = some @ narrow.T
            logits = (logits if bias is None else logits + bias.to(dtype)).float()
            total += F.cross_entropy(
                logits, label, ignore_index=ignored, label_smoothing=smoothing, reduction="sum"
            )
            counted = (label != ignored).unsqueeze(1)
            d_logits = logits.softmax(-1)
            if smoothing:
                d_logits -= smoothing / wide
            place = torch.where(counted.squeeze(1), label, 0).unsqueeze(1)
            d_logits.scatter_add_(1, place, torch.full_like(d_logits[:, :1], smoothing - 1))
            d_logits *= counted
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            narrow_d = d_logits.to(dtype)
            d_hidden[rows] = (narrow_d @ narrow).to(hidden.dtype)
            d_weight += (narrow_d.T @ some).to(weight.dtype)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        bias = None if d_bias is None else d_bias * grad
        return d_hidden * grad, d_weight * grad, bias, None, None, None, None


class LazyLogits:
    """Logits [..., v] of hidden states [..., d] that are computed only on demand."""

    def __init__(
        self, hidden: Tensor, head: nn.Linear, call: Any, like: "LazyLogits | None" = None
    ) -> None:
        """With the format and changes of others ``like`` these; the format is otherwise the one in which
        the layer is called now."""
        self.hidden, self.head, self.call, self.device = hidden, head, call, hidden.device
        self.shape = torch.Size([*hidden.shape[:-1], head.out_features])
        kind = hidden.device.type
        self.autocast: bool = like.autocast if like else torch.is_autocast_enabled(kind)
        now = torch.get_autocast_dtype(kind) if self.autocast else hidden.dtype
        self.dtype: torch.dtype = like.dtype if like else now
        self.changes: tuple[Callable[[Tensor], Tensor], ...] = like.changes if like else ()
        """Changes of the format of the logits, or of the size of their gradient."""

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def _of(self, hidden: Tensor) -> "LazyLogits":
        return LazyLogits(hidden, self.head, self.call, self)

    def changed_later(self, change: Callable[[Tensor], Tensor]) -> "LazyLogits":
        """The same with a further change: see :func:`transformer_core.tune.nested.mapped`."""
        found = self._of(self.hidden)
        found.changes = (*self.changes, change)
        return found

    def view(self, *shape: Any) -> Any:
        """Still not computed if the last dimension is unchanged."""
        wanted = shape[0] if isinstance(shape[0], tuple | list) else shape
        *rows, last = wanted
        if last == self.shape[-1] or (last == -1 and prod(rows) == prod(self.shape[:-1])):
            return self._of(self.hidden.reshape(*rows, self.hidden.size(-1)))
        return self.computed().view(*shape)

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Still not computed if the last dimension is unchanged."""
        dims = self.hidden.dim()
        if end_dim % dims == dims - 1:
            return self.computed().flatten(start_dim, end_dim)
        return self._of(self.hidden.flatten(start_dim, end_dim))

    def contiguous(self) -> "LazyLogits":
        return self

    float = contiguous  # The loss is computed in 32 bits anyway.

    def computed(self) -> Tensor:
        # The model may have been left, and its autocast with it.
        with torch.autocast(self.device.type, self.dtype, self.autocast):
            logits: Tensor = self.call(self.hidden)
        return self.changed(logits)

    def changed(self, tensor: Tensor) -> Tensor:
        for change in self.changes:
            tensor = change(tensor)
        return tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computed(), name)

    def __getitem__(self, index: Any) -> Any:
        # All of the last dimension of some tokens: logits[..., :-1, :] of a shifted loss.
        if isinstance(index, tuple) and index[-1] == slice(None) and len(index) > 1:
            return self._of(self.hidden[index])
        return self.computed()[index]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if unwrap(function) is _PLAIN and isinstance(args[0], LazyLogits):
            loss = _chunked(*args, **kwargs)
            if loss is not None:
                return loss
        plain = [arg.computed() if isinstance(arg, LazyLogits) else arg for arg in args]
        named = {k: v.computed() if isinstance(v, LazyLogits) else v for k, v in kwargs.items()}
        return function(*plain, **named)


def _operator(name: str) -> Callable[..., Any]:
    """A method of tensors that Python looks up in the class: ``logits / 30``."""
    return lambda logits, *others: getattr(logits.computed(), name)(*others)


_BOTH = ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "matmul")
_ONE = ("neg", "abs", "len", "lt", "le", "gt", "ge", "eq", "ne")
for _name in (*_BOTH, *(f"r{each}" for each in _BOTH), *_ONE):
    setattr(LazyLogits, f"__{_name}__", _operator(f"__{_name}__"))

_PLAIN = unwrap(F.cross_entropy)
"""torch's own function: the one that ``__torch_function__`` gets may be wrapped."""


def _chunked(logits: LazyLogits, target: Tensor, *more: Any, **options: Any) -> Tensor | None:
    """The loss; None if its arguments do not allow chunks."""
    known = {"ignore_index", "reduction", "label_smoothing"}
    # torch names all arguments, even those not given.
    options = {name: value for name, value in options.items() if value is not None}
    reduction = options.pop("reduction", "mean")
    if more or logits.hidden.dim() != 2 or target.dim() != 1 or not options.keys() <= known:
        return None
    if reduction not in ("mean", "sum") or target.is_floating_point():
        return None
    ignored = options.get("ignore_index", -100)
    smoothing = options.get("label_smoothing", 0.0)
    head = logits.head
    total: Tensor = ChunkedCrossEntropy.apply(
        logits.hidden, head.weight, head.bias, target, ignored, smoothing, logits.dtype
    )
    ChunkedLoss.applied += 1
    total = logits.changed(total)  # The size of its gradient is that of the logits' gradient.
    return total if reduction == "sum" else total / (target != ignored).sum()


class ChunkedLoss(Technique):
    name = "chunked_loss"
    words = "output layer and cross-entropy in chunks of tokens"
    group = "loss"
    place = 1
    advice = (
        "Compute output layer and cross-entropy a few hundred tokens at a time, for instance "
        "with torch.nn.functional.linear_cross_entropy or Liger-Kernel's fused loss."
    )
    idle = (
        "the logits are changed before the loss, or the loss has options that chunks do not support"
    )

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if facts["head"] is None and facts["classes"] < 1000:
            return "the loss is no cross-entropy over a large vocabulary"
        if facts["head"] is None and len(facts["heads"]) != 1:
            return f"{len(facts['heads'])} linear layers could be the output layer"
        return None

    def module(self, module: nn.Module) -> None:
        number, _, name = (self.facts["head"] or self.facts["heads"][0]).partition(":")
        if module is not next(islice(self.watch.boundaries.modules, int(number), None), None):
            return  # The modules become known one after another.
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module, name = module.module, name.removeprefix("module.")
        head = _linear(module, name)

        def lazily(call: Any, hidden: Tensor) -> Any:
            if not (head.training and torch.is_grad_enabled()):
                return call(hidden)
            return LazyLogits(hidden, head, call)

        wrap(head, lazily)

    def prepare(self, watch: Watch) -> None:
        self.watch = watch


def _linear(module: nn.Module, name: str) -> nn.Linear:
    """The linear layer ``name`` of ``module``; ValueError if there is none."""
    linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if name not in linear:
        raise ValueError(
            f"task.head = {name}: the module has no such linear layer; remedy: name one of its "
            f"linear layers; the last are {', '.join(linear[-3:])}"
        )
    return module.get_submodule(name)  # type: ignore[return-value]
