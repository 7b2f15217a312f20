"""Copies of a script with other functions of torch: disturbed ones, which show how far rounding may go,
one without dropout, and one with other seeds.

Functions with a kink at 0: when sums are added in another order, an input near 0 may fall on the
other side, where the slope differs. One such number changes the gradient of a tensor by more than all
rounding does. Chance decides which inputs cross, so a copy with only disturbed weights says little.
In this copy all inputs cross that may.

Maximum over a window: if two inputs are nearly equal, or both 0 after a ReLU, rounding or another
memory format decides which of them gets the gradient. In this copy the other one gets it.

Recurrent layers: a format with few bits rounds their state at every position, not only their result.
LayerNorm on CPUs adds up the gradients of its parameters in such a format.

These functions may not be in the main module of a side, which is the script: torch's compiler traces
the functions that replace torch's.
"""

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.tune.boundaries import replacing

NEAR = 128 * 2.0**-24
"""Inputs this close to 0, relative to the root mean square of all inputs, may fall on either side in
32 bits. A few convolutions in another memory format differ by up to 96 units of 2**-24 (measured for
the discriminator of a small DCGAN with batch normalization)."""

FUNCTIONS: tuple[tuple[Any, str], ...] = (
    *((owner, name) for owner in (torch, Tensor) for name in ("relu", "relu_", "prelu")),
    *((torch._C._nn, name) for name in ("leaky_relu", "leaky_relu_", "hardtanh", "hardtanh_")),
    *((functional, name) for name in ("relu_", "leaky_relu_", "prelu")),
)
"""Modules and the other functions of ``torch.nn.functional`` end up calling these."""

POOLINGS: tuple[tuple[str, Any], ...] = (
    ("max_pool1d", torch.max_pool1d_with_indices),
    ("max_pool2d", torch._C._nn.max_pool2d_with_indices),
    ("max_pool3d", torch._C._nn.max_pool3d_with_indices),
)
"""Functions of torch, each with the variant that also returns the positions of the maxima."""


def cross_over(now: Callable[[], bool] = lambda: True) -> None:
    """While ``now()``, inputs of these functions near 0 fall on the other side, and a maximum that two
    inputs nearly share goes to the other one."""
    cross_zero(NEAR, now)
    for name, located in POOLINGS:
        setattr(torch, name, _passing_on(getattr(torch, name), located, now))


def cross_zero(near: float, now: Callable[[], bool] = lambda: True) -> None:
    """The same for inputs ``near`` 0 alone."""
    for owner, name in FUNCTIONS:
        setattr(owner, name, _crossing(getattr(owner, name), near, now))


def _tracked(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()


def _near(x: Tensor, near: float = NEAR) -> Tensor:
    """The distance from 0 below which rounding decides the side."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return near * torch.linalg.vector_norm(x, dtype=wide) / x.numel() ** 0.5


def _passing_on(
    real: Callable[..., Tensor], located: Callable[..., Any], now: Callable[[], bool]
) -> Callable[..., Tensor]:
    @wraps(real)
    def function(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not (_tracked(input) and now()):
            return real(input, *args, **kwargs)
        with torch.no_grad():
            largest, places = located(input, *args, **kwargs)
            # Windows span the last one to three dimensions; places are indices into these, flattened.
            dims = int(real.__name__[-2])
            flat, places = input.detach().flatten(-dims), places.flatten(-dims)
            others = flat.scatter(-1, places, -torch.inf).unflatten(-1, input.shape[-dims:])
            lead = (largest - real(others, *args, **kwargs)).flatten(-dims)
            near = _near(input)
            change = torch.where(lead <= near, -(lead + near), 0).to(input.dtype)
            # One input may be the maximum of several windows.
            change = torch.zeros_like(flat).scatter_reduce(-1, places, change, "amin")
        return real(input + change.unflatten(-1, input.shape[-dims:]), *args, **kwargs)

    return function


def _crossing(
    real: Callable[..., Tensor], near: float, now: Callable[[], bool]
) -> Callable[..., Tensor]:
    in_place = real.__name__.endswith("_")

    @wraps(real)
    def function(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not (_tracked(input) and now()):
            return real(input, *args, **kwargs)
        with torch.no_grad():
            change = torch.where(input.abs() <= _near(input, near), -2 * input, 0)
        # The input moves, but the slope with respect to it stays 1.
        return real(input.add_(change) if in_place else input + change, *args, **kwargs)

    return function


class Hook:
    """A forward hook that changes results. A script may save or copy the whole model: without it."""

    def __init__(self, function: Callable[[nn.Module, Any, Any], Any] | None = None) -> None:
        self._function = function

    def __call__(self, module: nn.Module, inputs: Any, result: Any) -> Any:
        return None if self._function is None else self._function(module, inputs, result)

    def __reduce__(self) -> Any:
        return Hook, ()


RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def round_states() -> None:
    """From now on, recurrent layers round their state to bfloat16 after every position."""
    for kind in RECURRENT:
        kind.forward = _place_by_place(kind.forward)  # type: ignore[method-assign]


def _place_by_place(real: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass position by position. Bidirectional layers, packed sequences, and layers with
    dropout in between are not changed."""

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


def round_norms(now: Callable[[], bool]) -> None:
    """While ``now()``, LayerNorm on CPUs computes in bfloat16, as under autocast. torch then adds up the
    gradients of its weight and bias in that format: from 4,096 rows they are 7 % off (torch 2.13)."""

    @replacing(torch, "layer_norm")
    def layer_norm(real: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not (_tracked(input) and input.dtype == torch.float32 and input.is_cpu and now()):
            return real(input, *args, **kwargs)
        return real(input.to(torch.bfloat16), *args, **kwargs).to(input.dtype)


DROPOUTS = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout"),
)


def without_dropout(rates: set[float]) -> None:
    """Disables dropout, to compare programs that draw different masks. Adds the rates that the script
    requests to ``rates``."""
    functional: Any = torch.nn.functional

    def note(rate: float) -> None:
        if rate and not torch.compiler.is_compiling():
            rates.add(float(rate))

    def undropped(
        dropout: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        note(p * training)
        return input

    for name in DROPOUTS:
        replacing(functional, name)(undropped)

    @replacing(functional, "scaled_dot_product_attention")
    def attend(attention: Any, *args: Any, **more: Any) -> Any:
        rate = more.pop("dropout_p", 0.0)
        if len(args) > 4:
            rate, args = args[4], (*args[:4], 0.0, *args[5:])
        note(rate)
        return attention(*args, **more)


def _shifted(seed: Any, shift: int) -> Any:
    if seed is None:
        return shift
    if isinstance(seed, int | np.integer | Tensor):
        return (int(seed) + shift) % 2**32
    if not shift:
        return seed
    if isinstance(seed, float):
        return int(seed) + shift
    if isinstance(seed, str | bytes | bytearray):
        return f"{seed!r} {shift}"
    return [*seed, shift]  # for NumPy: torch gives each worker of a loader several numbers


def _named(function: Callable[..., Any], owner: str, name: str) -> Callable[..., Any]:
    """``function`` under the name of the one that it replaces, by which it is pickled."""
    function.__module__, function.__qualname__ = owner, name
    return function


def shift_seeds(shift: int) -> None:
    """Add ``shift`` to every seed that the script sets, and seed the generators that it does not."""

    def shifted(original: Callable[..., Any], owner: str) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("seed", kwargs.get("a"))
            return original(_shifted(given, shift))

        return _named(seed, owner, original.__name__)

    for name in ("manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, shifted(getattr(torch.cuda, name), "torch.cuda"))
    originals = torch.manual_seed, random.seed, np.random.seed
    drawn = np.random.default_rng

    def default_rng(seed: Any = None) -> Any:
        plain = seed is None or isinstance(seed, int | np.integer)
        return drawn(_shifted(seed, shift) if plain else seed)

    torch.manual_seed = torch.random.manual_seed = shifted(originals[0], "torch")
    random.seed = shifted(originals[1], "random")
    np.random.seed = shifted(originals[2], "numpy.random")
    np.random.default_rng = _named(default_rng, "numpy.random", "default_rng")
    for set_seed in originals:
        set_seed(shift)
