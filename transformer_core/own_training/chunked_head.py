"""The user's cross-entropy a few tokens at a time: the logits of a batch never exist together.

The output layer gives, in place of logits, an object that knows how to make them. The user's loss
reshapes it and hands it to ``F.cross_entropy``, which torch lets it answer itself
(``__torch_function__``); for anything else that is asked of it, it becomes the logits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROWS = 256
"""Tokens whose logits exist at a time."""


class LazyLogits:
    """Logits [..., v] of hidden states [..., d] that have not been computed."""

    def __init__(self, hidden: Tensor, head: nn.Linear) -> None:
        self.hidden, self.head = hidden, head

    @property
    def shape(self) -> torch.Size:
        """[..., v]."""
        return torch.Size([*self.hidden.shape[:-1], self.head.out_features])

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def view(self, *shape: Any) -> Any:
        """Still not computed where the last dimension stays."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if wanted[-1] in (-1, self.shape[-1]) and len(wanted) > 1 and -1 not in wanted[1:-1]:
            last = self.hidden.size(-1)
            if wanted[-1] != -1 or wanted[0] != -1:
                return LazyLogits(self.hidden.reshape(*wanted[:-1], last), self.head)
        return self.computed().view(*shape)

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Still not computed where the last dimension stays."""
        dims = self.hidden.dim()
        if end_dim % dims == dims - 1:
            return self.computed().flatten(start_dim, end_dim)
        return LazyLogits(self.hidden.flatten(start_dim, end_dim), self.head)

    def float(self) -> "LazyLogits":
        """Losses are computed in 32 bits anyway."""
        return self

    def computed(self) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.hidden)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computed(), name)

    def __getitem__(self, index: Any) -> Tensor:
        return self.computed()[index]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.cross_entropy and isinstance(args[0], LazyLogits):
            loss = _chunked(*args, **kwargs)
            if loss is not None:
                return loss
        plain = [arg.computed() if isinstance(arg, LazyLogits) else arg for arg in args]
        named = {k: v.computed() if isinstance(v, LazyLogits) else v for k, v in kwargs.items()}
        return function(*plain, **named)


def _chunked(logits: LazyLogits, target: Tensor, *more: Any, **options: Any) -> Tensor | None:
    """The loss; None where it is one that cannot be divided."""
    known = {"ignore_index", "reduction", "label_smoothing"}
    # torch names all arguments, even those not given.
    options = {name: value for name, value in options.items() if value is not None}
    reduction = options.pop("reduction", "mean")
    if more or logits.hidden.dim() != 2 or target.dim() != 1 or not options.keys() <= known:
        return None
    if reduction not in ("mean", "sum") or target.is_floating_point():
        return None

    def loss_of(hidden: Tensor, chunk: Tensor) -> Tensor:
        found = logits.head(hidden).float()
        return F.cross_entropy(found, chunk, reduction="sum", **options)

    chunks = zip(logits.hidden.split(ROWS), target.split(ROWS), strict=True)
    total = torch.stack(
        [
            checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
    ).sum()
    if reduction == "sum":
        return total
    return total / (target != options.get("ignore_index", -100)).sum()


class ChunkedHead(nn.Module):
    """A linear layer that defers its product until its use is known; evaluation computes it."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Any:
        """hidden [..., d] -> logits [..., v], not computed in training."""
        return LazyLogits(hidden, self.head) if self.training else self.head(hidden)


def with_chunked_head(module: nn.Module, name: str) -> None:
    """Put a :class:`ChunkedHead` in the place of the linear layer ``name`` of ``module``.

    ValueError if there is none of that name.
    """
    try:
        head = module.get_submodule(name)
    except AttributeError:
        linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
        raise ValueError(
            f"task.head = {name}: the module has no such part; remedy: take one of its linear "
            f"layers, the last are {', '.join(linear[-3:])}"
        ) from None
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"task.head = {name}: is a {type(head).__name__}; remedy: name a torch.nn.Linear"
        )
    above, _, last = name.rpartition(".")
    setattr(module.get_submodule(above), last, ChunkedHead(head))
