"""Recomputes the updates of known optimizers in 64 bits from the gradients alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

MOST_NUMBERS = 1 << 20  # numbers followed per tensor: the first ones of a larger tensor
MOST_TENSORS = 64

LOST = 0.5  # An update is lost if rounding to the weights' format takes this share of it.


@dataclass
class _Followed:
    """A tensor with our own moments, so that we need not trust those of the optimizer."""

    name: str
    mean: Tensor
    square: Tensor
    steps: int = 0
    before: Tensor | None = None
    gradient: Tensor | None = None


def kind_of(optimizer: Optimizer) -> str | None:
    """``sgd``, ``adam`` or ``adamw``, from the name of the optimizer's class or of a base class, so also
    for classes that the user wrote; None for any other."""
    for each in type(optimizer).__mro__:
        if each.__name__.lower() in ("sgd", "adam", "adamw"):
            return each.__name__.lower()
    return None


class Updates:
    """Follows one optimizer from its first step."""

    def __init__(self, optimizer: Optimizer, names: dict[int, str]) -> None:
        self.optimizer = optimizer
        self.kind = kind_of(optimizer)
        self.steps = 0
        self._names = names
        self._followed: dict[int, _Followed] = {}

    @property
    def usable(self) -> bool:
        groups = self.optimizer.param_groups
        options = ("amsgrad", "nesterov", "centered")
        return self.kind is not None and not any(g.get(o) for g in groups for o in options)

    @torch.no_grad()
    def before(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                plain = parameter.is_floating_point() and not hasattr(parameter, "to_local")
                if gradient is None or gradient.is_sparse or not plain:
                    continue
                known = self._followed.get(id(parameter))
                if known is None:
                    fresh = not self.optimizer.state.get(parameter)
                    if not fresh or len(self._followed) >= MOST_TENSORS:
                        continue
                    zeros = torch.zeros_like(_head(parameter))
                    name = self._names.get(id(parameter), "a tensor")
                    known = self._followed[id(parameter)] = _Followed(name, zeros, zeros.clone())
                known.before, known.gradient = _head(parameter), _head(gradient)

    @torch.no_grad()
    def after(self) -> list[tuple[str, str, float, float]]:
        """Called after a step: (tensor, cause, measured, allowed) of each update that differs."""
        found = []
        self.steps += 1
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                known = self._followed.get(id(parameter))
                if known is None or known.before is None:
                    continue
                real = _head(parameter) - known.before
                if differs := self._judge(parameter, known, group, real):
                    found.append((known.name, *differs))
                known.before = None
        return found

    def _judge(
        self, parameter: nn.Parameter, known: _Followed, group: dict[str, Any], real: Tensor
    ) -> tuple[str, float, float] | None:
        assert self.kind is not None
        known.steps += 1
        means = known.mean.clone(), known.square.clone()
        expected = _expected(self.kind, known, group)
        size = float(expected.norm())
        if not size or not torch.isfinite(expected).all():
            return None
        assert known.before is not None
        half = torch.finfo(parameter.dtype).eps / 2
        rounding = float((known.before.abs() * half).norm()) / size
        gap = float((real - expected).norm()) / size
        narrow = parameter.dtype in (torch.bfloat16, torch.float16)
        if narrow and rounding > LOST and gap > LOST:
            share = float((real == 0).float().mean())
            return (
                f"rounding to {str(parameter.dtype).removeprefix('torch.')} takes the update: "
                f"{100 * share:.0f} % of its numbers do not change",
                gap,
                LOST,
            )
        allowed = 1e-3 + 4 * rounding
        if gap <= allowed:
            return None
        after = known.mean, known.square
        for words, changed in _HYPOTHESES:
            known.mean, known.square = means[0].clone(), means[1].clone()
            other = _expected(self.kind, known, group, **changed)
            if float((real - other).norm()) <= max(1e-3, 4 * rounding) * float(other.norm()):
                return f"the update is that of {self.kind} {words}", gap, allowed
        known.mean, known.square = after
        ratio = float((real * expected).sum() / expected.square().sum())
        return f"the update is {ratio:.3g} times what {self.kind} gives", gap, allowed


_HYPOTHESES: list[tuple[str, dict[str, Any]]] = [
    ("with decay of the weights themselves, as AdamW has it", {"decay": "decoupled"}),
    ("with decay added to the gradient, as Adam has it", {"decay": "coupled"}),
    ("without weight decay", {"decay": "none"}),
    ("without correction of the moments' bias", {"corrected": False}),
    ("with moments that were reset before this step", {"forget": True}),
    ("for the opposite gradient", {"sign": -1.0}),
    ("without its moments", {"plain": True}),
]


def _expected(
    kind: str,
    known: _Followed,
    group: dict[str, Any],
    decay: str | None = None,
    corrected: bool = True,
    forget: bool = False,
    sign: float = 1.0,
    plain: bool = False,
) -> Tensor:
    """The update in 64 bits. Also updates the moments of ``known``."""
    assert known.before is not None
    assert known.gradient is not None
    rate, amount = float(group["lr"]), float(group.get("weight_decay", 0.0))
    gradient = known.gradient * (-sign if group.get("maximize") else sign)
    own = "decoupled" if kind == "adamw" or group.get("decoupled_weight_decay") else "coupled"
    decay = decay or own
    steps = 1 if forget else known.steps
    if forget:
        known.mean.zero_()
        known.square.zero_()
    if decay == "coupled":
        gradient = gradient + amount * known.before
    if kind == "sgd":
        momentum = float(group.get("momentum", 0.0))
        if momentum and not plain:
            damp = 1 - float(group.get("dampening", 0.0)) if known.steps > 1 else 1.0
            known.mean.mul_(momentum).add_(damp * gradient)
            gradient = known.mean
        shrink = amount * known.before if decay == "decoupled" else 0.0
        return -rate * (gradient + shrink)
    first, second = (float(b) for b in group.get("betas", (0.9, 0.999)))
    known.mean.mul_(first).add_((1 - first) * gradient)
    known.square.mul_(second).add_((1 - second) * gradient.square())
    if plain:
        return -rate * gradient
    one, two = (1 - first**steps, 1 - second**steps) if corrected else (1.0, 1.0)
    update = known.mean / one / ((known.square / two).sqrt() + float(group.get("eps", 1e-8)))
    shrink = amount * known.before if decay == "decoupled" else 0.0
    return -rate * (update + shrink)


def _head(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1)[:MOST_NUMBERS].double().cpu().clone()
