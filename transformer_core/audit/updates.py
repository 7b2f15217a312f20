"""Recomputes the updates of known optimizers in 64 bits from the gradients alone."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

MOST_NUMBERS = 1 << 20  # numbers followed per tensor: the first ones of a larger tensor
MOST_TENSORS = 64

KINDS = ("sgd", "adam", "adamw", "rmsprop")
LOST = 0.5  # An update is lost if rounding to the weights' format takes this share of it.
Moments = tuple[Tensor, Tensor]  # running means of a gradient and of its square


@dataclass
class _Followed:
    """A tensor with our own moments, so that we need not trust those of the optimizer."""

    name: str
    moments: Moments
    steps: int = 0
    now: tuple[Tensor, Tensor] | None = None  # weights and gradient before the current step


class Updates:
    """Follows one optimizer from its first step."""

    def __init__(self, optimizer: Optimizer, names: dict[int, str]) -> None:
        self.optimizer = optimizer
        classes = [each.__name__.lower() for each in type(optimizer).__mro__]
        # Also for classes that the user wrote; empty for any other. A class with another name and a step
        # of its own, such as LARS, follows another formula than the class that it extends. A step may also be a
        # function that the script puts there.
        owner = type(optimizer).step.__qualname__.rpartition(".")[0]
        stepping = owner.rpartition(".")[2].lower()
        classes = classes[: classes.index(stepping) + 1] if stepping in classes else []
        self.kind = next((name for name in classes if name in KINDS), "")
        self.of_library = _is_of_library(type(optimizer).step.__module__)
        """Whether the formula is that of a library, which may call another one by the same name."""
        self.steps = 0  # those of which an update was compared
        self.other = False  # whether the class does something else with a tensor than its name says
        self._names = names
        self._followed: dict[int, _Followed] = {}

    @property
    def usable(self) -> bool:
        groups = self.optimizer.param_groups
        options = ("amsgrad", "centered") + ("nesterov",) * (self.kind != "sgd")
        return bool(self.kind) and not any(g.get(o) for g in groups for o in options)

    def forget(self) -> None:
        """Begin again: the optimizer has got another state."""
        self._followed.clear()

    @torch.no_grad()
    def before(self) -> None:
        # To a fused kernel, a GradScaler leaves scaled gradients, and steps that it would leave out.
        scale, overflow = (
            getattr(self.optimizer, each, None) for each in ("grad_scale", "found_inf")
        )
        times = 1.0 if scale is None else float(scale)
        steps = overflow is None or not float(overflow)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                plain = parameter.is_floating_point() and not hasattr(parameter, "to_local")
                if gradient is None or gradient.is_sparse or not plain:
                    continue
                weights = _head(parameter)
                if id(parameter) not in self._followed:
                    fresh = not self.optimizer.state.get(parameter)
                    if not fresh or len(self._followed) >= MOST_TENSORS:
                        continue
                    name, zeros = self._names.get(id(parameter), "a tensor"), weights.new_zeros(())
                    self._followed[id(parameter)] = _Followed(name, (zeros, zeros))
                if steps:
                    self._followed[id(parameter)].now = weights, _head(gradient) / times

    @torch.no_grad()
    def after(self) -> list[tuple[str, str, float, float]]:
        """Called after a step: (tensor, cause, measured, allowed) of each update that differs."""
        found, compared = [], False
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                known = self._followed.get(id(parameter))
                if known is None or known.now is None:
                    continue
                if not self._is_plain(parameter):
                    self.other, known.now = True, None
                    continue
                compared = True
                if differs := self._judge(parameter, known, *known.now, group):
                    found.append((known.name, *differs))
                known.now = None
        self.steps += compared
        return found

    def _is_plain(self, parameter: nn.Parameter) -> bool:
        """Whether the optimizer keeps only numbers, and means of the tensor's own size, of a tensor. A class
        of the user may have the name of a formula that it applies to something else: the projection of the
        gradient to a few dimensions, for example."""
        kept = self.optimizer.state.get(parameter, {}).values()
        return all(
            each.numel() == 1 or each.shape == parameter.shape
            if isinstance(each, Tensor)
            else each is None or isinstance(each, bool | int | float)
            for each in kept
        )

    def _judge(
        self,
        parameter: nn.Parameter,
        known: _Followed,
        weights: Tensor,
        gradient: Tensor,
        group: dict[str, Any],
    ) -> tuple[str, float, float] | None:
        known.steps += 1
        given = self.kind, known.moments, known.steps, weights, gradient, group
        expected, known.moments = _expected(*given)
        real = _head(parameter) - weights
        size = float(expected.norm())
        if not size or not torch.isfinite(expected).all():
            return None
        half = torch.finfo(parameter.dtype).eps / 2
        rounding = float((weights.abs() * half).norm()) / size
        gap = float((real - expected).norm()) / size
        narrow = parameter.dtype in (torch.bfloat16, torch.float16)
        if narrow and rounding > LOST and gap > LOST:
            share = float((real == 0).float().mean())
            return (
                f"rounding to {str(parameter.dtype).removeprefix('torch.')} swallows the update: "
                f"{100 * share:.0f} % of its numbers do not change",
                gap,
                LOST,
            )
        allowed = 1e-3 + 4 * rounding
        if gap <= allowed:
            return None
        # Adam's paper has both forms. TensorFlow and older versions of transformers add epsilon to the root before
        # they correct its bias, which matters if gradients are small.
        other, _ = _expected(*given, early=True)
        if float((real - other).norm()) <= allowed * float(other.norm()):
            return None
        for words, changed in _HYPOTHESES:
            other, moments = _expected(*given, **changed)
            if float((real - other).norm()) <= max(1e-3, 4 * rounding) * float(other.norm()):
                known.moments = moments
                return f"the update is that of {self.kind} {words}", gap, allowed
        ratio = float((real * expected).sum() / expected.square().sum())
        return f"the update is {ratio:.3g} times what {self.kind} gives", gap, allowed


def _is_of_library(module: str) -> bool:
    """Whether a module belongs to an installed package other than torch."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = any(folder in Path(file).parts for folder in ("site-packages", "dist-packages"))
    return installed and module.partition(".")[0] != "torch"


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
    moments: Moments,
    steps: int,
    weights: Tensor,
    gradient: Tensor,
    group: dict[str, Any],
    decay: str | None = None,
    corrected: bool = True,
    forget: bool = False,
    sign: float = 1.0,
    plain: bool = False,
    early: bool = False,
) -> tuple[Tensor, Moments]:
    """The update in 64 bits, and the moments after it. ``steps`` includes this one; ``early`` adds epsilon
    before the bias of the second moment is corrected."""
    rate, amount = float(group["lr"]), float(group.get("weight_decay", 0.0))
    gradient = gradient * (-sign if group.get("maximize") else sign)
    own = "decoupled" if kind == "adamw" or group.get("decoupled_weight_decay") else "coupled"
    decay = decay or own
    mean, square = (torch.zeros_like(m) for m in moments) if forget else moments
    if decay == "coupled":
        gradient = gradient + amount * weights
    shrink = amount * weights if decay == "decoupled" else 0.0
    if kind == "sgd":
        momentum = float(group.get("momentum", 0.0))
        if momentum and not plain:
            damp = 1 - float(group.get("dampening", 0.0)) if steps > 1 else 1.0
            mean = momentum * mean + damp * gradient
            gradient = gradient + momentum * mean if group.get("nesterov") else mean
        return -rate * (gradient + shrink), (mean, square)
    if kind == "rmsprop":
        kept, momentum = float(group.get("alpha", 0.99)), float(group.get("momentum", 0.0))
        square = kept * square + (1 - kept) * gradient.square()
        gradient = gradient / (square.sqrt() + float(group.get("eps", 1e-8)))
        mean = momentum * mean + gradient
        return -rate * ((gradient if plain else mean) + shrink), (mean, square)
    first, second = (float(b) for b in group.get("betas", (0.9, 0.999)))
    mean = first * mean + (1 - first) * gradient
    square = second * square + (1 - second) * gradient.square()
    if plain:
        return -rate * gradient, (mean, square)
    counted = 1 if forget else steps
    # The option by which older versions of transformers, as BERT, and apex do without the correction.
    corrected &= group.get("correct_bias", group.get("bias_correction", True)) is not False
    one, two = (1 - first**counted, 1 - second**counted) if corrected else (1.0, 1.0)
    epsilon = float(group.get("eps", 1e-8)) / (two**0.5 if early else 1.0)
    update = mean / one / ((square / two).sqrt() + epsilon)
    return -rate * (update + shrink), (mean, square)


def _head(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1)[:MOST_NUMBERS].double().cpu().clone()
