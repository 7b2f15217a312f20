"""Backward passes that a script writes by hand, against the slope of their forward passes."""

from typing import Any

import torch
from torch import Tensor

from transformer_core.audit.relations import Finding, Notes
from transformer_core.audit.replay import State, refused, tensors

Kept = tuple[Any, Any, str, dict[int, Tensor]]
"""A function, its arguments, its line, and which numbers of each result had a gradient."""


def functions(kept: list[Kept], notes: Notes) -> None:
    """Backward passes written by hand against the slope of their forward passes, in 64 bits."""
    for each in kept:
        state = State()
        try:
            _function(*each, notes)
        except Exception as error:
            notes.cannot("slope", refused(error))
        finally:
            state.restore()


def _function(cls: Any, args: Any, place: str, used: dict[int, Tensor], notes: Notes) -> None:
    state = State()
    wanted = [n for n, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]

    def call(values: Any) -> list[Tensor]:
        state.restore()
        return tensors(cls.apply(*values))

    def wide(number: int, step: Tensor | None = None) -> Any:
        values = [
            a.detach().double() if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in args
        ]
        if step is not None:
            values[number] = values[number] + step
        return values

    own = [
        a.detach().clone().requires_grad_(n in wanted)
        if isinstance(a, Tensor) and a.is_floating_point()
        else a
        for n, a in enumerate(args)
    ]
    numbers = [n for n, t in enumerate(call(own)) if t.requires_grad]
    outputs = [t for t in call(own) if t.requires_grad]
    if not outputs or not wanted:
        return
    if any(t.shape == a.shape and torch.equal(t, a) for t in outputs for a in tensors(own)):
        return  # Its forward pass changes nothing: its backward pass is its purpose.
    generator = torch.Generator().manual_seed(2)
    # Numbers that nothing depends on may have any gradient, or none.
    weights = [
        torch.randn(t.shape, generator=generator).to(t) * used.get(n, torch.ones_like(t))
        for n, t in zip(numbers, outputs, strict=True)
    ]
    slopes = torch.autograd.grad(outputs, [own[n] for n in wanted], weights, allow_unused=True)
    notes.holds("slope", f"{cls.__name__}'s backward pass")
    # A function that computes in fewer bits than it gets needs a longer step.
    exact = all(call(wide(wanted[0]))[n].dtype == torch.float64 for n in numbers)
    length = 1e-6 if exact else 1e-2
    for number, slope in zip(wanted, slopes, strict=True):
        errors, sizes = [], []
        for _ in range(4):
            step = (
                torch.randn(args[number].shape, generator=generator)
                .double()
                .to(args[number].device)
            )
            small = (
                length * float(args[number].detach().double().abs().max().clamp_min(1e-3)) * step
            )
            up, down = call(wide(number, small)), call(wide(number, -small))
            real = (
                sum(
                    float(((up[n] - down[n]) * w.double()).sum())
                    for n, w in zip(numbers, weights, strict=True)
                )
                / 2
            )
            mine = float((slope.double() * small).sum()) if slope is not None else 0.0
            errors.append((real - mine) ** 2)
            sizes.append(real**2)
        size = sum(sizes) ** 0.5
        off = sum(errors) ** 0.5
        if size == 0:
            continue  # A step function: its gradient can only be made up.
        narrow = tensors(own)[0].dtype in (torch.bfloat16, torch.float16)
        allowed = 0.1 if narrow else 0.01
        if off > allowed * size:
            notes.found(
                Finding(
                    "slope",
                    f"{cls.__name__} at {place}",
                    f"its backward pass gives a gradient of argument {number} that is "
                    f"{off / size:.2g} off the slope of its forward pass",
                    "compare it with torch.autograd.gradcheck",
                    off / size,
                    allowed,
                )
            )
