"""Watches the layers of models: settings with the meaning of another library, layers that are one and the
same, units that never differ, weights that nothing depends on; and what each step begins with."""

import hashlib
import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from transformer_core.audit.relations import Notes
from transformer_core.tune.boundaries import parameters_now, plain_name
from transformer_core.tune.causes import some
from transformer_core.tune.records import distance, fingerprint, sketch

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

KEPT_STEPS = 512  # steps whose first random numbers and samples are compared
LEAST_STEPS = 4
MOST_DROPPED, MOST_MOMENTUM = 0.75, 0.9
MANY = 1024  # numbers of an input
DENSE = (nn.Linear, nn.modules.conv._ConvNd)


class Layers:
    """Watches the layers of the models of one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch, self.notes = watch, watch.found
        self._begin: tuple[int, str] = (-1, "")
        """The step whose first forward pass has begun, and the digest of its random numbers."""
        self._drawn: dict[str, int] = {}
        """Steps by the digest of the random numbers that they begin with, if they draw any."""
        self._again: list[tuple[int, int]] = []  # pairs of steps with the same random numbers
        self._samples: list[list[float]] = []  # fingerprints of the first inputs of steps

    # -- when a model is first called ----------------------------------------------------------

    def first_call(self, module: nn.Module) -> None:
        """Notes settings that mean the opposite elsewhere, and layers in a list that are one."""
        for name, part in module.named_modules():
            where = f"{plain_name(name)} ({type(part).__name__})".lstrip()
            momentum, rate = getattr(part, "momentum", None), getattr(part, "p", None)
            normal = isinstance(part, nn.modules.batchnorm._BatchNorm)
            if normal and isinstance(momentum, float) and momentum >= MOST_MOMENTUM:
                self.notes.found(
                    "evaluation",
                    where,
                    f"its momentum is {momentum:g}: evaluation uses the statistics of little more than the "
                    "last batch",
                    f"in PyTorch, momentum is the weight of the new batch: {1 - momentum:.2g} is what other "
                    f"libraries call {momentum:g}",
                    sure=False,
                )
            if isinstance(part, nn.modules.dropout._DropoutNd) and rate and rate >= MOST_DROPPED:
                self.notes.found(
                    "evaluation",
                    where,
                    f"it drops {100 * rate:.0f} % of its inputs in training",
                    f"in PyTorch, p is the share to drop: to keep {100 * rate:.0f} %, use {1 - rate:.2g}",
                    sure=False,
                )
            if isinstance(part, nn.ModuleList | nn.Sequential):
                times = Counter(
                    id(each) for each in part if next(parameters_now(each), None) is not None
                )
                if times and times.most_common(1)[0][1] > 1:
                    self.notes.found(
                        "trained",
                        where,
                        f"{times.most_common(1)[0][1]} of its layers are one and the same object: they share "
                        "their weights",
                        "make each layer anew: [Layer() for _ in range(n)] in place of [Layer()] * n",
                        sure=False,
                    )

    def receives(self, module: nn.Module, args: Any) -> None:
        """Called with the inputs of each layer in the first step. Notes pixels that are not scaled, or twice."""
        given = next((each for each in args if isinstance(each, Tensor)), None)
        if given is None or not isinstance(module, DENSE) or given.requires_grad:
            return
        if not given.is_floating_point() or given.numel() < MANY:
            return
        high = float(given.abs().max())
        whole = (
            128 < high <= 255 and float(given.min()) >= 0 and bool((given == given.round()).all())
        )
        tiny = 0 < high < 0.01 and given.dim() > 3
        if whole or tiny:
            self.notes.found(
                "loss",
                self.watch.name_of(module),
                f"its inputs are whole numbers up to {high:g}: pixels that are not scaled"
                if whole
                else f"its inputs are at most {high:.2g}: they may be scaled twice",
                "scale the inputs once, to about -1 to 1",
                sure=False,
            )

    # -- what a step begins with ---------------------------------------------------------------

    def begins(self, args: Any, kwargs: Any) -> None:
        """Called with the first inputs of each forward pass with gradients."""
        step = self.watch.steps
        if self._begin[0] == step or step >= KEPT_STEPS:
            return
        self._begin = step, _random_state()
        self._samples.append(fingerprint([args, kwargs]))

    def boundary(self) -> None:
        """Called at the end of each step."""
        step, before = self._begin
        if step != self.watch.steps or before == _random_state():
            return  # no random number is drawn
        if before in self._drawn:
            self._again.append((self._drawn[before], step))
        self._drawn.setdefault(before, step)

    # -- at the end ----------------------------------------------------------------------------

    def judge(self, found: Notes) -> None:
        if len(self._samples) >= LEAST_STEPS:
            found.holds("fresh", f"random numbers and inputs of {len(self._samples)} steps")
        if self._again:
            one, other = self._again[0]
            found.found(
                "fresh",
                "the random numbers",
                f"step {other + 1} begins with the random numbers of step {one + 1}: dropout and noise repeat",
                "seed once, before the training; in an evaluation, use a generator of its own or "
                "torch.random.fork_rng()",
                sure=False,
            )
        same = all(each == self._samples[0] for each in self._samples)
        several = any(_batches(loader) > 1 for loader in self.watch.loaders.values())
        if several and same and len(self._samples) >= LEAST_STEPS and self._samples[0]:
            found.found(
                "fresh",
                "the inputs",
                f"each of {len(self._samples)} steps trains on the same batch, although the data have more",
                "take the batches in turn: for batch in loader",
                sure=False,
            )
        self._unused(found)
        self._alike(found)

    def _unused(self, found: Notes) -> None:
        """Notes weights that an optimizer holds and that never get a gradient, or one of zeros only."""
        names = {id(p): name for name, p in self.watch.named()}
        never: list[str] = []
        zero: list[str] = []
        for known in self.watch.stepping.stepped.values():
            held = [p for group in known.optimizer.param_groups for p in group["params"]]
            # Some keep gradients elsewhere, and each rank only those of its shard.
            plain = any(self.watch.gradients[id(p)] for p in held)
            if known.steps < LEAST_STEPS or not plain:
                continue
            for p in held:
                name = names.get(id(p), "a tensor of no model that runs")
                if not p.requires_grad or not p.numel() or hasattr(p, "to_local"):
                    continue
                if id(p) not in self.watch.reached:
                    never.append(name)
                # Biases before a normalization or a softmax cancel.
                elif not self.watch.gradients[id(p)] and p.dim() > 1:
                    zero.append(name)
        # Of experts, heads of tasks and layers that are left out at random, others have gradients.
        used = {_pattern(name) for name, p in self.watch.named() if self.watch.gradients[id(p)]}
        for kind, words in (
            (never, "never gets a gradient"),
            (zero, "gets a gradient of zeros only"),
        ):
            own = [
                name for name in kind if not re.search(r"\d", name) or _pattern(name) not in used
            ]
            for group in by_module(own).values():
                found.found(
                    "trained",
                    some(group),
                    f"the optimizer holds it, but it {words}: no loss depends on it in the steps that ran",
                    "use its result in the loss, or remove it; look for detach(), rounding, argmax and dead "
                    "units before the loss",
                    sure=False,
                )

    def _alike(self, found: Notes) -> None:
        """Notes units, and layers side by side, that are trained and stay alike."""
        roots = [self.watch.roots[key] for key in self.watch.modes]
        for name, part in itertools.chain(*(root.named_modules() for root in roots)):
            weight = getattr(part, "weight", None)
            if isinstance(part, DENSE) and isinstance(weight, Tensor) and self._learns(weight):
                local = weight.detach()
                if len(local) > 1 and bool((local == local[:1]).all()):
                    found.found(
                        "trained",
                        f"{plain_name(name)} ({type(part).__name__})".lstrip(),
                        f"its {len(local)} units have the same weights and get the same gradients: they "
                        "never differ",
                        "begin with random weights",
                        sure=False,
                    )
            if isinstance(part, nn.ModuleList) and len(part) > 1:
                self._twins(plain_name(name), part, found)

    def _twins(self, name: str, part: nn.ModuleList, found: Notes) -> None:
        first, *others = ([p for p in each.parameters() if p.dim() > 1] for each in part)
        for other in others:
            alike = len(first) == len(other) and first and first[0] is not other[0]
            if (
                alike
                and all(self._learns(p) for p in (*first, *other))
                and all(
                    a.shape == b.shape and bool((a == b).all())
                    for a, b in zip(first, other, strict=True)
                )
            ):
                found.found(
                    "trained",
                    f"{name} (ModuleList)",
                    "layers of it have the same weights after training, too: they never differ",
                    "begin each with other random weights",
                    sure=False,
                )
                return

    def _learns(self, weight: Tensor) -> bool:
        """Whether several steps have moved a weight."""
        before = self.watch.first.get(id(weight))
        often = self.watch.gradients[id(weight)] >= LEAST_STEPS
        return often and before is not None and distance(sketch(weight), before) > 0


def _batches(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return 0


def _random_state() -> str:
    state = torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state += torch.cuda.get_rng_state().numpy().tobytes()
    return hashlib.sha256(state).hexdigest()


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def by_module(names: list[str]) -> dict[str, list[str]]:
    """Names of tensors, grouped by their layer in a list or their outermost module."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = next((n for n, p in enumerate(parts) if p.isdigit()), 0)
        found.setdefault(".".join(parts[: cut + 1]), []).append(name)
    return found
