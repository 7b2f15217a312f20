"""One process of an audit: watches the user's script, and probes it at the end of its turn.

:mod:`transformer_core.tune.coordinator` starts it, as the process of a side.
"""

import math
import os
import sys
import time
from functools import partial
from inspect import signature
from traceback import walk_stack
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transformer_core.audit.data import read_again
from transformer_core.audit.probes.detached import detached
from transformer_core.audit.probes.run import probe
from transformer_core.audit.relations import EAGER, NO_TIME, OF_CALLS, TWIN, Notes, user_line
from transformer_core.audit.replay import Call, State, drawn, refused
from transformer_core.audit.watcher import Watcher
from transformer_core.tune.boundaries import replacing
from transformer_core.tune.facts import device_of
from transformer_core.tune.nested import mapped, tensors
from transformer_core.tune.order import Order
from transformer_core.tune.side import Side
from transformer_core.tune.side import main as run_as

Kept = tuple[Any, Any, str, dict[int, Tensor]]
"""A function, its arguments, its line, and masks of the numbers of each result that had a gradient."""
ADDING = (
    *("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single"),
)
MOST_CALLS = 4
MOST_FUNCTIONS = 8
MOST_MISSED = 3


def functions(kept: list[Kept], notes: Notes, end: float = math.inf) -> None:
    """Compares handwritten backward passes with the slopes of their forward passes, in 64 bits, until
    ``end``, a time of ``time.monotonic``."""
    for each in kept:
        if time.monotonic() > end:
            notes.cannot("slope", NO_TIME)
            return
        state = State()
        try:
            _function(*each, notes)
        except Exception as error:
            notes.cannot("slope", refused(error))
        finally:
            state.restore()


def _function(cls: Any, args: Any, place: str, used: dict[int, Tensor], notes: Notes) -> None:
    state = State()
    own = mapped(args, _copy)
    wanted = [n for n, a in enumerate(own) if isinstance(a, Tensor) and a.requires_grad]

    def call(values: Any) -> list[Tensor]:
        state.restore()
        return tensors(cls.apply(*values))

    def wide(number: int, step: Tensor | float) -> Any:
        values = mapped(args, lambda t: t.detach().double() if t.is_floating_point() else t)
        values[number] = values[number] + step
        return values

    numbers = [n for n, t in enumerate(call(own)) if t.requires_grad]
    outputs = [t for t in call(own) if t.requires_grad]
    if not outputs or not wanted:
        return
    if any(t.shape == a.shape and torch.equal(t, a) for t in outputs for a in tensors(own)):
        # Its backward pass is its purpose.
        notes.cannot("slope", f"{cls.__name__} changes no number in its forward pass")
        return
    generator = torch.Generator().manual_seed(2)
    # Numbers that nothing depends on may have any gradient or none.
    weights = [
        drawn(t, generator).to(t) * used.get(n, torch.ones_like(t))
        for n, t in zip(numbers, outputs, strict=True)
    ]
    slopes = torch.autograd.grad(outputs, [own[n] for n in wanted], weights, allow_unused=True)
    # A function that computes in fewer bits than its arguments have needs a longer step.
    exact = all(call(wide(wanted[0], 0.0))[n].dtype == torch.float64 for n in numbers)
    length = 1e-6 if exact else 1e-2
    if any(_is_stepped(call, wide, n, args[n], 1e-12 if exact else 1e-4) for n in wanted):
        notes.cannot("slope", f"{cls.__name__} is a step function, which has no slope")
        return
    notes.holds("slope", f"{cls.__name__}'s backward pass")
    narrow = tensors(own)[0].dtype in (torch.bfloat16, torch.float16)
    allowed = 0.1 if narrow else 0.01

    def off(number: int, slope: Tensor | None, where: Tensor | float = 1.0) -> float:
        """Relative difference of a gradient from the slope, in the numbers that are not 0 in ``where``."""
        errors, sizes = [], []
        for _ in range(4):
            given = args[number].detach()
            step = drawn(given, generator).double().to(given.device) * where
            small = length * float(given.double().abs().max().clamp_min(1e-3)) * step
            up, down = call(wide(number, small)), call(wide(number, -small))
            pairs = zip(numbers, weights, strict=True)
            real = sum(float(((up[n] - down[n]) * w.double()).sum()) for n, w in pairs) / 2
            mine = float((slope.double() * small).sum()) if slope is not None else 0.0
            errors.append((real - mine) ** 2)
            sizes.append(real**2)
        size = sum(sizes) ** 0.5
        return sum(errors) ** 0.5 / size if size else 0.0

    for number, slope in zip(wanted, slopes, strict=True):
        found = off(number, slope)
        if found <= allowed:
            continue
        # Some functions hand gradients on where they cut their argument off, so that it can come back.
        tiny = 1e-12 if exact else 1e-4
        moves = _moves(call, wide, number, args[number], numbers, tiny)
        cut = moves is not None and off(number, slope, moves.double()) <= allowed
        notes.found(
            "slope",
            f"{cls.__name__} at {place}",
            f"its backward pass gives a gradient of argument {number} that is {found:.2g} off the slope of "
            "its forward pass" + (", but only where its result does not change" if cut else ""),
            "compare it with torch.autograd.gradcheck",
            found,
            allowed,
            sure=not cut,
        )


def _moves(
    call: Any, wide: Any, number: int, given: Tensor, numbers: list[int], tiny: float
) -> Tensor | None:
    """Which numbers of a result of the argument's shape change with those of the argument; None for any other
    result, and if all change."""
    before = call(wide(number, 0.0))
    after = call(wide(number, tiny * float(given.detach().abs().max())))
    if len(numbers) != 1 or before[numbers[0]].shape != given.shape:
        return None
    moves = before[numbers[0]] != after[numbers[0]]
    return None if bool(moves.all()) else moves


def _is_stepped(call: Any, wide: Any, number: int, given: Tensor, tiny: float) -> bool:
    """Whether a change of an argument that is tiny, but that rounding does not hide, leaves at least
    95 % of the results as they are, and a large change fewer: numbers are rounded, or spikes."""
    size = float(given.detach().double().abs().max())
    step = size * drawn(given, torch.Generator().manual_seed(3)).double()

    def still(length: float) -> float:
        moved = call(wide(number, length * step.to(given.device)))
        pairs = [*zip(call(wide(number, 0.0)), moved, strict=True)]
        same = sum(int((one == two).sum()) for one, two in pairs)
        return same / max(1, sum(one.numel() for one, _ in pairs))

    return still(tiny) >= 0.95 and still(1.0) < still(tiny)


def _note_gradient(call: Call, number: int, gradient: Tensor) -> None:
    call.used.add(number)
    if gradient.dim() == 3:
        call.touched.append((gradient.detach() != 0).any(-1))


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class Audited(Side):
    """The script's process: the side ``own`` is watched; ``twin`` is left alone while it is compared
    with ``own``, and probed in its next step."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.watcher = Watcher(self.boundaries)
        self.calls: list[Call] = []
        self.functions: list[Kept] = []
        self.used: dict[str, bool] = {}
        self.gathers: dict[str, int] = {}
        """Rows of all ranks that a function with a handwritten backward pass gathers, by its name."""
        self.reduces = False  # whether ranks meet in a backward pass, by the script's own code
        self._running = ""  # the function with a handwritten backward pass that runs
        self.armed = False
        self.missed = 0  # steps without a call of a model, after the recorded ones
        self.direct: dict[int, nn.Module] = {}
        """Models whose ``forward`` the script calls itself, by their ids."""
        self._inside = False  # whether such a call is running and kept
        self._looking = False

    def prepare(self) -> None:
        """Prepares the audit too."""
        if self.order.side == EAGER:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
            torch._dynamo.config.disable = True
        super().prepare()
        self.watcher.install()
        if self.order.side == TWIN:
            # A class method of Python; from torch 2.14 on, of C.
            unbound = torch.autograd.Function.__dict__["apply"]

            def original(cls: Any, *args: Any, **kwargs: Any) -> Any:
                return unbound.__get__(None, cls)(*args, **kwargs)

            def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
                if not self.armed or cls.__module__.split(".")[0] == "torch":
                    return original(cls, *args, **kwargs)
                return self._function(original, cls, args, kwargs)

            torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
            nn.modules.module.register_module_forward_hook(self._output)
            if distributed.is_available():
                for name in ("all_gather", "all_gather_into_tensor"):
                    replacing(distributed, name)(self._gather)
                for name in ADDING:
                    replacing(distributed, name)(self._reduce)

    def _gather(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature(original).bind(*args, **kwargs).arguments
        part = given.get("tensor", given.get("input_tensor"))  # by the function's own name
        if self._running and given.get("group") is None and isinstance(part, Tensor) and part.dim():
            self.gathers[self._running] = len(part) * distributed.get_world_size()
        return original(*args, **kwargs)

    def _reduce(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.reduces |= self.armed and self.watcher.backward_depth > 0
        return original(*args, **kwargs)

    def _gathered(self, notes: Notes) -> None:
        """Notes rows that a rank gathers from the others, without the gradients of their losses. A
        rank that computes the loss of all rows needs no gradients of others."""
        losses = self.watcher.losses.history[-1] if self.watcher.losses.history else []
        rows = [r.count for r in losses if r.kind in ("cross_entropy", "nll_loss", "log_softmax")]
        wrapped = any(isinstance(m, DistributedDataParallel) for m in self.watcher.roots.values())
        for name, count in self.gathers.items():
            if rows and wrapped and not self.reduces and self.used.get(name) and max(rows) < count:
                notes.found(
                    "ranks",
                    name,
                    f"it gathers {count} rows of all ranks, and each rank computes the loss of only "
                    f"{max(rows)}: its backward pass leaves out the gradients of the other ranks' losses",
                    "add up the gradients over the ranks in backward(), or use "
                    "torch.distributed.nn.functional.all_gather",
                    sure=False,
                )

    def _function(self, original: Any, cls: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function with a handwritten backward pass. Keeps its first call with plain
        arguments, and notes whether its results get gradients."""
        masks: dict[int, Tensor] = {}
        known = {each[0] for each in self.functions}
        plain = all(isinstance(a, Tensor | int | float | bool | str | None) for a in args)
        keep = plain and not kwargs and cls not in known and len(known) < MOST_FUNCTIONS
        keep = keep and torch.is_grad_enabled()
        keep = keep and any(isinstance(a, Tensor) and a.requires_grad for a in args)
        if keep:
            self.functions.append((cls, mapped([*args], _copy), user_line(), masks))
        name = f"{cls.__name__} at {user_line()}"
        outer, self._running = self._running, name
        try:
            found = original(cls, *args, **kwargs)
        finally:
            self._running = outer

        def note(number: int, gradient: Tensor) -> None:
            self.used[name] = True
            if keep:
                masks[number] = gradient != 0

        for number, each in enumerate(tensors(found)):
            if each.requires_grad and torch.is_grad_enabled():
                self.used.setdefault(name, False)
                each.register_hook(partial(note, number))
        return found

    def _note_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        super()._note_inputs(module, args, kwargs)
        if self.armed and not self._inside:
            self._keep(module, args, kwargs)
        elif self.order.side == TWIN and not self.armed:
            self._look_for_callers(module)

    def _keep(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if len(self.calls) < MOST_CALLS:
            device = device_of(module).type
            cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            given, named = mapped((args, kwargs), lambda t: t.detach().clone())
            self.calls.append(Call(module, given, named, State(), cast))

    def _look_for_callers(self, module: nn.Module) -> None:
        """Finds the model of which ``module`` is a part, if its ``forward`` runs without a call."""
        outermost = None
        for frame, _ in walk_stack(sys._getframe(1)):
            if frame.f_code.co_name == "forward":
                found = frame.f_locals.get("self")
                if isinstance(found, nn.Module) and any(m is module for m in found.modules()):
                    outermost = found
        if outermost not in (None, module) and "forward" not in outermost.__dict__:
            self.direct[id(outermost)] = outermost

    def _keep_forward(self, module: nn.Module) -> None:
        """Lets a call of ``module.forward`` count as a call of the module, until the probes."""
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not (module.training and torch.is_grad_enabled()):
                return forward(*args, **kwargs)
            self._keep(module, args, kwargs)
            self._inside = True
            try:
                found = forward(*args, **kwargs)
            finally:
                self._inside = False
            self._output(module, args, found)
            return found

        module.__dict__["forward"] = call

    def _output(self, module: nn.Module, args: Any, output: Any) -> None:
        """Notes which results of a model get a gradient."""
        if torch.compiler.is_compiling():
            return  # or the compiler would take this audit for a part of the model
        if not self.armed or not self.calls or self.calls[-1].module is not module:
            return
        call = self.calls[-1]
        for number, each in enumerate(tensors(output)):
            call.outputs.append(each.detach())
            if each.requires_grad:
                # In torch 2.13, register_hook crashes on a view that was changed through another view.
                # Reading grad_fn first prevents this.
                _ = each.grad_fn
                each.register_hook(partial(_note_gradient, call, number))

    def _wait(self) -> None:
        super()._wait()
        # The turn after the recorded ones is probed.
        self.armed = self.order.side == TWIN and self.step > 0 and not self.recording
        if self.armed:
            self.watcher.outside = []
            for module in self.direct.values():
                self._keep_forward(module)

    def _boundary(self) -> None:
        self.watcher.boundary()
        if self.armed and not self.calls and self.missed < MOST_MISSED:
            # Where one optimizer steps right after another, no model runs in between.
            self.missed += 1
            self.left += 1
        elif self.armed:
            self.armed = False
            for module in self.direct.values():
                del module.__dict__["forward"]
            self._probe()
        super()._boundary()

    def _probe(self) -> None:
        end = time.monotonic() + self.order.probe_seconds
        outside, self.watcher.outside = self.watcher.outside or [], None
        notes = self.watcher.found
        names = [type(p).__name__ for m in self.boundaries.modules for p in m.modules()]
        sharded = any("FullyShard" in name or "FSDP" in name for name in names)
        if sharded or not self.calls:
            why = (
                "its weights are sharded over ranks"
                if sharded
                else "no call of a model in training mode is seen"
            )
            for relation in OF_CALLS:
                notes.cannot(relation, why)
        else:
            seen: set[int] = set()
            for call in self.calls:
                if id(call.module) not in seen:
                    seen.add(id(call.module))
                    probe(call, self.watcher, outside, end)
            suspects = {
                id(p): name
                for name, p in self.watcher.trainable()
                if id(p) not in self.watcher.gradients
            }
            if suspects and self.watcher.gradients and self.step > 1:
                detached(self.calls, self.watcher, suspects, notes, end)
        self._gathered(notes)
        functions(self.functions, notes, end)
        for name, used in self.used.items():
            if not used:
                notes.found(
                    "slope",
                    name,
                    "its backward pass never runs: its result is not used",
                    "use the result of apply() in place of its argument",
                    sure=False,
                )
        if not self.functions:
            why = "its handwritten backward passes take more than tensors and numbers"
            notes.cannot(
                "slope", why if self.used else "the script has no handwritten backward pass"
            )
        self.calls = []
        self.watcher.listening = []  # A data set may call a model.
        for loader in self.watcher.loaders.values():
            if time.monotonic() > end:
                notes.cannot("data", NO_TIME)
                break
            read_again(loader, notes)

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"audit": self.watcher.notes() | {"rank": self.rank}}

    def last_words(self) -> dict[str, Any]:
        """Everything found so far."""
        return {"facts": self._facts()}


def main() -> NoReturn:
    run_as(Audited)


if __name__ == "__main__":
    main()
