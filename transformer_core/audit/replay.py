"""Repeats calls of a model: in their own format or in 64 bits, with other inputs or weights. Nothing
stays changed afterwards."""

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformer_core.audit.watcher import Watcher
from transformer_core.tune.facts import device_of
from transformer_core.tune.nested import mapped, tensors
from transformer_core.tune.program import shortened

NARROW = (torch.float32, torch.bfloat16, torch.float16)
OF_TORCH = vars(nn.Module()).keys()  # names of the attributes that each module has
TRAINS = {"training": True, "train": True, "is_training": True, "deterministic": False}
"""Arguments that some models take in place of a mode, and their values in training."""


@dataclass
class Call:
    """One call of an outermost module in a step of the training."""

    module: nn.Module
    args: Any
    kwargs: Any
    state: "State"
    autocast: torch.dtype | None
    outputs: list[Tensor] = field(default_factory=list)
    """Its outputs in that step; the optimizer has moved the weights before the call is repeated."""
    used: set[int] = field(default_factory=set)  # indices of the outputs that got a gradient
    touched: list[Tensor] = field(default_factory=list)
    """Of each gradient of an output [samples, places, ...], whether a place has one other than zero."""

    @property
    def inner(self) -> nn.Module:
        """The module inside torch's wrappers."""
        module: Any = self.module
        while True:
            if hasattr(module, "_orig_mod"):
                module = module._orig_mod
            elif isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
                module = module.module
            else:
                return module


@dataclass
class Result:
    outputs: list[Tensor]
    losses: list[tuple[str, Tensor, Any]]  # name, logits and targets of each loss inside the call
    modules: dict[str, list[Tensor]]
    """Results of all inner modules by name, in the order in which their calls ended."""
    inputs: dict[str, list[Tensor]]
    drew: bool  # whether the call drew random numbers of torch
    indices: list[Tensor]  # the outputs that are integers
    counted: dict[int, Tensor] = field(default_factory=dict)
    """Which rows of a loss inside the call get a gradient, by the id of the targets."""


class State:
    """The state of all random number generators."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._others = random.getstate(), np.random.get_state()

    def drew(self) -> bool:
        """Whether random numbers of torch were drawn since."""
        cuda = torch.cuda.get_rng_state_all() if self._cuda else []
        pairs = zip([self._torch, *self._cuda], [torch.get_rng_state(), *cuda], strict=True)
        return any(not torch.equal(before, now) for before, now in pairs)

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._others[0])
        np.random.set_state(self._others[1])


class _Widen(TorchFunctionMode):
    """Replaces every narrower floating-point format that a program requests by float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return args[0].double()

        def wide(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value

        kwargs = {name: wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(wide, args), **kwargs)


def again(
    call: Call,
    watcher: Watcher,
    double: bool = False,
    args: Any = None,
    evaluation: bool = False,
    disturb: float = 0.0,
    change: Mapping[int, Tensor] | None = None,
    inside: bool = False,
    graded: bool = False,
) -> Result:
    """Repeats ``call``.

    Args:
        watcher: meanwhile only keeps the losses, and watches nothing else.
        double: in float64.
        args: other arguments and keyword arguments.
        evaluation: in evaluation mode.
        disturb: changes each weight by a random share of its size, at most this one.
        change: other values of parameters, by their ids.
        inside: keep the inputs and results of inner modules.
        graded: also find out which rows of its losses get a gradient.
    """
    module = call.inner
    given = (call.args, call.kwargs) if args is None else args
    kept: list[tuple[str, Tensor, Any]] = []
    modules: dict[str, list[Tensor]] = {}
    inputs: dict[str, list[Tensor]] = {}

    def keep(name: str, part: nn.Module, given: Any, output: Any) -> None:
        modules.setdefault(name, []).extend(t.detach() for t in tensors(output))
        inputs.setdefault(name, []).extend(t.detach() for t in tensors(given, floating=False))

    parts = module.named_modules() if inside else ()
    handles = [part.register_forward_hook(partial(keep, name)) for name, part in parts]
    watcher.listening = kept
    try:
        with _unchanged(module, double, evaluation, disturb, change), torch.enable_grad():
            call.state.restore()
            args, kwargs = mapped(given, _doubled if double else lambda t: t)
            if evaluation:
                args, kwargs, _ = evaluating(module, args, kwargs)
            device = device_of(module).type
            cast = torch.autocast(
                device, call.autocast or torch.bfloat16, call.autocast is not None and not double
            )
            with cast, _Widen() if double else nullcontext():
                output = module._call_impl(*args, **kwargs)
            outputs = [t.detach() for t in tensors(output)]
            indices = [t for t in tensors(output, floating=False) if not t.is_floating_point()]
            counted = _counted(tensors(output), kept) if graded else {}
            drew = call.state.drew()
    finally:
        watcher.listening = None
        for handle in handles:
            handle.remove()
    kept = [(name, logits.detach(), target) for name, logits, target in kept]
    return Result(outputs, kept, modules, inputs, drew, indices, counted)


def _counted(outputs: list[Tensor], losses: list[tuple[str, Tensor, Any]]) -> dict[int, Tensor]:
    """Which rows of the losses get a gradient from the numbers among the outputs, by the ids of the targets:
    a mask may leave out rows of a loss without reduction."""
    totals = [t.sum() for t in outputs if t.numel() == 1 and t.requires_grad]
    asked = [(logits, id(target)) for _, logits, target in losses if logits.requires_grad]
    if not totals or not asked:
        return {}
    try:
        total = torch.stack([each.double() for each in totals]).sum()
        found = torch.autograd.grad(total, [logits for logits, _ in asked], allow_unused=True)
    except RuntimeError:
        return {}
    pairs = [(key, each) for (_, key), each in zip(asked, found, strict=True) if each is not None]
    return {key: (each != 0).any(1) for key, each in pairs if each.dim() > 1}


def evaluating(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
    """The arguments of a call in evaluation, and whether any of them stands for the mode."""
    # A layer of Keras hands its arguments over to a function of this name.
    function = getattr(module, "call", module.forward)
    try:
        bound, kwargs = inspect.signature(function).bind_partial(*args), dict(kwargs)
    except ValueError:  # A traced module has no names of arguments.
        return args, kwargs, False
    found = False
    for given in (bound.arguments, kwargs):
        for name, value in given.items():
            if name in TRAINS and value is TRAINS[name]:
                given[name], found = not value, True
    return bound.args, kwargs, found


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _copied(tensor: Tensor, double: bool) -> Tensor:
    if isinstance(tensor, nn.Parameter):
        return tensor  # as the list of weights of a recurrent layer
    copy = tensor.detach().clone()
    return _doubled(copy) if double else copy


@contextmanager
def _unchanged(
    module: nn.Module,
    double: bool,
    evaluation: bool,
    disturb: float,
    change: Mapping[int, Tensor] | None,
) -> Iterator[None]:
    """Lets a module run in another format or mode, and restores everything afterwards."""
    parts = list(module.modules())
    modes = [(part, part.training) for part in parts]
    before = State()
    kept: list[tuple[Tensor, Tensor]] = [(t, t.data) for t in module.parameters()]
    buffers = [(t, t.data) for t in module.buffers()]
    own = [dict(part._buffers) for part in parts]
    plain = [dict(vars(part)) for part in parts]
    default = torch.get_default_dtype()
    generator = torch.Generator().manual_seed(1)
    try:
        for tensor, data in kept:
            data = (change or {}).get(id(tensor), data)
            if disturb and data.is_floating_point():
                noise = torch.empty(data.shape, dtype=torch.float64, device="cpu")
                noise = noise.uniform_(-disturb, disturb, generator=generator).to(data.device)
                data = data.double() * (1 + noise) if double else data * (1 + noise).to(data.dtype)
            tensor.data = _doubled(data) if double else data
        for tensor, data in buffers:
            tensor.data = _doubled(data) if double and data.is_floating_point() else data.clone()
        for part in parts:
            for name in vars(part).keys() - OF_TORCH:
                # Such as the last state of a recurrence, with which the next call begins.
                if tensors(vars(part)[name], floating=False):
                    vars(part)[name] = mapped(vars(part)[name], partial(_copied, double=double))
        if evaluation:
            for part in parts:
                part.training = False
        if double:
            torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in [*kept, *buffers]:
            tensor.data = data
        for part, mine, attributes in zip(parts, own, plain, strict=True):
            if isinstance(part._buffers, dict):  # Scripted modules have none of Python.
                part._buffers.clear()
                part._buffers.update(mine)
            for name in vars(part).keys() - attributes.keys():
                del vars(part)[name]
            vars(part).update(attributes)
        for part, mode in modes:
            part.training = mode
        before.restore()


def drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers in the shape of a tensor. The script's default device may not be that of the generator, a
    CPU."""
    return torch.randn(like.shape, generator=generator, device="cpu")


def gap(one: Tensor, two: Tensor) -> float:
    """Relative difference of two tensors; infinite if their shapes differ or different numbers are not
    finite."""
    if one.shape != two.shape:
        return float("inf")
    one, two = one.double(), two.double()
    both = torch.isfinite(one) & torch.isfinite(two)
    if not bool((torch.isfinite(one) == torch.isfinite(two)).all()):
        return float("inf")
    one, two = one[both], two[both]
    return float((one - two).norm() / two.norm().clamp_min(1e-30)) if len(one) else 0.0


def refused(error: Exception) -> str:
    """Why a relation cannot be tested, from the error of a repeated call."""
    said = f": {shortened(str(error).splitlines()[0])}" if str(error) else ""
    return f"a repeated call fails: {type(error).__name__}{said}"
