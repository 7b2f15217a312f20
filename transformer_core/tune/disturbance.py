"""What rounding may do, in the copy of a script that tells how far it goes.

A function that bends at 0: an input near 0 may fall on the other side when its sums are added in
another order, and its slope is another one then. One such number changes the gradient of a tensor
by more than all rounding. Whether one falls over is chance, so that a copy whose weights are
disturbed says little about it. In this copy all that may fall over do.

A recurrent layer: a format with few bits rounds its state at every place, not its result alone.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NEAR = 128 * 2.0**-24
"""Inputs within this of 0, relative to the size of all inputs (their root mean square), may fall on
either side in 32 bits. Convolutions of a few layers in another memory format differ by up to 96
units of 2**-24 (measured for the discriminator of a small DCGAN, normalized by batch)."""

FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch, "relu"),
    (torch, "relu_"),
    (torch, "prelu"),
    (Tensor, "relu"),
    (Tensor, "relu_"),
    (Tensor, "prelu"),
    (torch._C._nn, "leaky_relu"),
    (torch._C._nn, "leaky_relu_"),
    (torch._C._nn, "hardtanh"),
    (torch._C._nn, "hardtanh_"),
    (functional, "relu_"),
    (functional, "leaky_relu_"),
    (functional, "prelu"),
)
"""What modules and the other functions of ``torch.nn.functional`` call in the end."""


def cross_over() -> None:
    """Lets every input near 0 of these functions fall on the other side, from now on."""
    for owner, name in FUNCTIONS:
        setattr(owner, name, _crossing(getattr(owner, name)))


def _crossing(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    in_place = real.__name__.endswith("_")

    @wraps(real)
    def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad) or torch.compiler.is_compiling():
            return real(x, *args, **kwargs)
        with torch.no_grad():
            size = torch.linalg.vector_norm(x, dtype=torch.float32) / x.numel() ** 0.5
            near = x.abs() <= NEAR * size
            change = torch.where(near, -2 * x, 0)
        # The input moves, and its slope stays.
        return real(x.add_(change) if in_place else x + change, *args, **kwargs)

    return function


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def round_states() -> None:
    """Lets recurrent layers have their state in bfloat16 after every place, from now on."""
    for kind in RECURRENT:
        kind.forward = _place_by_place(kind.forward)  # type: ignore[method-assign]


def _place_by_place(real: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass place by place. Layers of both directions, packed sequences, and dropout
    between layers stay as they are."""

    def rounded(state: Any) -> Any:
        if isinstance(state, tuple):
            return tuple(map(rounded, state))
        return state.to(torch.bfloat16).to(state.dtype)

    @wraps(real)
    def forward(layer: nn.RNNBase, x: Any, state: Any = None) -> Any:
        plain = isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point()
        if not plain or layer.bidirectional or (layer.dropout and layer.num_layers > 1):
            return real(layer, x, state)
        places = 1 if layer.batch_first else 0
        results = []
        for place in x.split(1, places):
            result, state = real(layer, place, state)
            state = rounded(state)
            results.append(rounded(result))
        return torch.cat(results, places), state

    return forward
