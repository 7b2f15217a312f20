"""Observes a training script from outside, by torch's global hooks.

A boundary is the end of an optimizer step, in any loop: ``torch.optim`` calls global hooks around
each ``step()`` (``register_optimizer_step_pre_hook`` and ``..._post_hook``). With several optimizers,
each step of each of them ends at a boundary. Optimizers that step while ``backward`` runs, each for
some parameters as soon as their gradients exist, take one step together, which ends with ``backward``. A
script that updates its weights by hand has no such call: its boundaries are the ends of ``backward``.
"""

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from transformer_core.tune.order import Boundary
from transformer_core.tune.records import Sketch, sketch

Call = Callable[..., Any]

BACKWARDS_WITHOUT_STEP = 8
"""Weights that have changed after this many backward passes without an optimizer were updated by
hand. If they have not changed, the step accumulates gradients."""

STEPS = Optimizer.profile_hook_step.__code__.co_filename  # the file whose function calls the hooks
ORDER_KEPT = 64  # optimizer steps whose order is remembered


class Boundaries:
    """Reports the modules and losses of a training, and the end of each step.

    Assign the callbacks before the script starts; each does nothing by default. ``kind`` says where
    a step ends.
    """

    def __init__(self, kind: Boundary = "optimizer") -> None:
        self.kind = kind
        self.modules: list[nn.Module] = []
        """Outermost modules with parameters that were called in training, in order."""
        self.optimizers: list[Optimizer] = []
        """Optimizers that have stepped, in order, without those that :meth:`_forget` has let go."""
        self.losses: list[Tensor] = []
        """Copies of the losses of the backward passes since the last boundary."""
        self.backwards = 0  # backward passes so far
        self.on_module: Callable[[nn.Module], None] = lambda module: None
        """Called once for each outermost module, before its first call in training."""
        self.on_inputs: Callable[[nn.Module, Any, Any], None] = lambda module, args, kwargs: None
        """Called with the arguments of each call of an outermost module in training."""
        self.on_backward: Callable[[Any], None] = lambda tensors: None
        """Called with the losses of each backward pass before it starts, also of one inside another."""
        self.before_first_update: Callable[[], None] = lambda: None
        """Called once, before any weight changes, when all gradients of the first step may exist."""
        self.on_optimizer: Callable[[], None] = lambda: None
        """Called before the first step of each further optimizer."""
        self.before_update: Callable[[Optimizer], None] = lambda optimizer: None
        """Called with an optimizer before it changes weights. Afterwards its gradients may differ
        from those of ``backward`` and the script: some kernels change them in place (SGD's
        multi-tensor kernel with Nesterov momentum, and fused kernels, which unscale them). In a step
        with a closure, called after each call of the closure."""
        self.order: list[int] = []
        """Numbers of the optimizers in the order of their first :data:`ORDER_KEPT` steps."""
        self.on_boundary: Callable[[], None] = lambda: None  # called at the end of each step
        self.on_captured_step: Callable[[], None] = lambda: None
        """Called before a step that becomes a part of a CUDA graph: when that runs, no hook is called."""
        self.compared: Callable[[], bool] = lambda: False
        """Whether steps are compared now. A step that a GradScaler leaves to a fused kernel to skip is then
        no boundary, as without that kernel; to know, the host waits for a GPU. On a CPU it never is one."""
        self.result: bool | list[bool] | None = None
        """Whether the first result of a module was a floating-point tensor that is not a scalar; for
        a tuple, whether each of its members was."""
        self._call: Call = nn.Module.__call__
        self._watching = True
        self._names: dict[int, tuple[str, nn.Parameter]] = {}
        self._marks: list[tuple[Tensor, torch.Size, Sketch]] = []
        self._depth = 0  # steps of optimizers that are running: one may call another's
        self._outermost: FrameType | None = None
        self._begun = False
        self._idle = False
        """Whether the running step belongs to no training: some scripts move an optimizer without
        gradients before they train, to draw the schedule of its rate."""
        self._stepped_inside = False  # whether an optimizer steps in the running backward pass

    def install(self) -> None:
        # A script may compile its steps: the compiler would trace what observes them, too.
        register_optimizer_step_pre_hook(torch.compiler.disable(self._before_step))
        register_optimizer_step_post_hook(torch.compiler.disable(self._after_step))
        self._patch_backward()
        self._watch_modules()
        _script_originals()

    def stop_watching_modules(self) -> None:
        """Restores ``nn.Module.__call__``, so that later calls cost nothing. By then all outermost
        modules of the training must have been called."""
        self._watching = False
        nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of everything that the optimizers update, always in the same order.
        Without an optimizer: the parameters of all modules that were called."""
        for name, parameter in members(self.modules, "parameters"):
            self._names.setdefault(id(parameter), (name, parameter))
        seen: set[int] = set()
        found: Iterable[nn.Parameter]
        if self.optimizers:
            groups = (group for each in self.optimizers for group in each.param_groups)
            found = itertools.chain.from_iterable(group["params"] for group in groups)
        else:
            found = (p for _, p in members(self.modules, "parameters") if p.requires_grad)
        for number, parameter in enumerate(found):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                name = f"parameter {number}"
                # A reference to the parameter keeps its id unique.
                yield self._names.setdefault(id(parameter), (name, parameter))[0], parameter

    def orphans(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of the modules' parameters that no optimizer updates."""
        updated = {id(parameter) for _, parameter in self.parameters()}
        for name, parameter in members(self.modules, "parameters"):
            if id(parameter) not in updated:
                yield name, parameter

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Name and buffer of the modules' floating-point buffers. Without an optimizer, also the parameters
        without gradients, such as the statistics of a Keras model."""
        for name, buffer in members(self.modules, "buffers"):
            if buffer.is_floating_point():
                yield name, buffer
        for name, parameter in self.orphans() if not self.optimizers else ():
            if not parameter.requires_grad and parameter.is_floating_point():
                yield name, parameter

    def cycle(self) -> int:
        """Number of boundaries after which the order of the optimizers repeats: 1 with a single
        optimizer, 2 if two take turns."""
        return next(
            (n for n in range(1, len(self.order) // 2 + 1) if self.order[n:] == self.order[:-n]),
            max(1, len(self.optimizers)),
        )

    def updated_by_hand(self) -> bool:
        if self.optimizers or self.backwards < BACKWARDS_WITHOUT_STEP:
            return False
        # Weights that FSDP puts together for a backward pass have no memory afterwards, or are parts again.
        now = {id(p) for _, p in members(self.modules, "parameters")}
        return any(
            not np.array_equal(before, sketch(p), equal_nan=True)
            for p, shape, before in self._marks
            if p.shape == shape and (id(p) in now or not now)
        )

    def _watch_modules(self) -> None:
        """Intercept calls of modules until :meth:`stop_watching_modules`.

        Only the outermost call is intercepted: the original is restored for its duration, so neither
        inner modules nor the compiler ever see the replacement.
        """
        original = self._call

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                # The compiler took this function for the original one; a trace is no training.
                return original(module, *args, **kwargs)
            # A call that backward repeats (checkpointed activations) is not a call of the script.
            trains = module.training and torch.is_grad_enabled() and not _in_backward()
            # Nor is that of a weight's parametrization, which also runs when it is registered.
            trains &= not isinstance(module, ParametrizationList)
            # Nor is one without values, as Keras makes them to learn shapes.
            own = [*parameters_now(module)] if trains else []
            if not any(p.requires_grad and not p.is_meta for p in own):
                return original(module, *args, **kwargs)
            lazy = any(map(nn.parameter.is_lazy, own))  # It gives its layers their shapes.
            if not lazy and not any(module is known for known in self.modules):
                self.modules.append(module)
                self.on_module(module)
            if not lazy and not transformed():
                self.on_inputs(module, args, kwargs)
            nn.Module.__call__ = original  # type: ignore[method-assign]
            try:
                found = original(module, *args, **kwargs)
                if self.result is None and not lazy:
                    self.result = (
                        [*map(_is_wide, found)] if type(found) is tuple else _is_wide(found)
                    )
                return found
            finally:
                if self._watching:  # The call may have taken a step.
                    nn.Module.__call__ = call  # type: ignore[method-assign]

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _patch_backward(self) -> None:
        @replacing(torch.autograd, "backward")
        def backward(original: Call, tensors: Any, *args: Any, **kwargs: Any) -> None:
            self.on_backward(tensors)
            if _in_backward():  # Part of the pass that is running, as in reentrant checkpoints.
                original(tensors, *args, **kwargs)
                return
            first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            if isinstance(first, Tensor) and first.numel() == 1:
                # A copy: the next call of a compiled model may overwrite it, if that is a CUDA graph.
                self.losses.append(first.detach().clone())
            self.backwards += 1
            if self.backwards == 1:
                every = [p for _, p in members(self.modules, "parameters")] or leaves(tensors)
                self._marks = [(p, p.shape, sketch(p)) for p in every[:64]]
            if self.kind == "backward":
                self._begin()
            self._stepped_inside = False
            original(tensors, *args, **kwargs)
            if self._stepped_inside:
                self._stepped(0)
            if self.kind == "backward" or self._stepped_inside:
                self._end()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if _captured():
            self.on_captured_step()
        running = [frame for frame, _ in walk_stack(sys._getframe(1))]
        if self._outermost not in running:
            self._depth = 0  # The script caught an error of that step.
        if not self._depth:
            self._outermost = next((r for r in running if r.f_code.co_filename == STEPS), None)
        self._depth += 1
        if self._depth > 1:
            return None
        closures = any(map(callable, (*args[1:], *kwargs.values())))
        gradients = (p.grad is not None for g in optimizer.param_groups for p in g["params"])
        self._idle = not (self.backwards or closures or any(gradients))
        overflow = getattr(optimizer, "found_inf", None)  # from a GradScaler
        known = overflow is not None and (overflow.is_cpu or self.compared())
        self._idle |= known and bool(overflow)
        if self._idle or self.kind != "optimizer":
            return None
        number = next((i for i, o in enumerate(self.optimizers) if o is optimizer), None)
        if number is None:
            if not self.compared():
                self._forget()
            number = len(self.optimizers)
            self.optimizers.append(optimizer)
            if self._begun:
                self.on_optimizer()
        if not _in_backward():
            self._stepped(number)
        # A closure computes the gradients inside the step: Lightning, LBFGS.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._then_update(optimizer, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._then_update(optimizer, kwargs["closure"])}
        self._begin()
        self.before_update(optimizer)
        return None

    def _then_update(self, optimizer: Optimizer, closure: Call) -> Call:
        def call() -> Any:
            found = closure()
            self._begin()
            self.before_update(optimizer)
            return found

        return call

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._outermost = None  # Its frame would keep a closure's batch.
        if self._idle:
            return
        if self.kind == "optimizer" and _in_backward():
            self._stepped_inside = True
        elif self.kind == "optimizer":
            self._begin()
            self._end()

    def _forget(self) -> None:
        """Lets go of optimizers that the script has dropped, as federated averaging does in each round, and of
        their parameters."""
        known = [weakref.ref(each) for each in self.optimizers]
        self.optimizers.clear()
        self.optimizers += [each for ref in known if (each := ref()) is not None]
        self._names.clear()

    def begin_again(self) -> None:
        """Lets only the optimizers that step from now on count: which of those that the script has dropped are
        still alive depends on when Python collects garbage."""
        self.optimizers.clear()
        self._names.clear()

    def _stepped(self, number: int) -> None:
        if len(self.order) < ORDER_KEPT:
            self.order.append(number)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.before_first_update()

    def _end(self) -> None:
        self.on_boundary()
        self.losses = []


def _script_originals() -> None:
    """TorchScript compiles the source of a function; of one that is replaced, that is the original's."""
    owners = ((torch.jit._recursive, "try_compile_fn"), (torch.jit._builtins, "_find_builtin"))
    for owner, name in owners:
        replacing(owner, name)(lambda real, function, *more: real(original_of(function), *more))


def original_of(function: Any) -> Any:
    """The function that the observer has replaced by ``function``; this itself if it has not."""
    while (code := getattr(function, "__code__", None)) and hasattr(function, "__wrapped__"):
        if not Path(code.co_filename).is_relative_to(Path(__file__).parents[1]):
            break
        function = function.__wrapped__
    return function


def _in_backward() -> bool:
    """Whether autograd is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def transformed() -> bool:
    """Whether values of tensors cannot be read: those in a transformation of torch.func stand for those of
    many calls, while a CUDA graph is captured, there are none, and a trace would keep what reads them."""
    if torch._C._are_functorch_transforms_active() or torch._C._is_tracing():
        return True
    return _captured()


def _captured() -> bool:
    if torch.compiler.is_compiling() or not torch.cuda.is_initialized():
        return False
    return torch.cuda.is_current_stream_capturing()


def _is_wide(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


def leaves(tensors: Any) -> list[Tensor]:
    """The tensors that get a gradient from a backward pass."""
    found: list[Tensor] = []
    seen: set[Any] = set()
    every = [tensors] if isinstance(tensors, Tensor) else tensors
    waiting = [getattr(each, "grad_fn", None) for each in every]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            waiting += [following for following, _ in node.next_functions]
    return found


def parameters_now(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that a module has by now. A layer of Keras makes some, and fails, if asked for them
    while it learns its shapes."""
    every = (p for part in module.modules() for p in part._parameters.values())
    return (p for p in every if p is not None)


def members(modules: Iterable[nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    """Plain name and value of each of the ``parameters`` or ``buffers`` of several modules, except those
    on the meta device, which Keras leaves behind. The names of all modules but the first begin with
    their number."""
    for number, module in enumerate(modules):
        head = f"{number}." if number else ""
        for name, member in getattr(module, f"named_{kind}")():
            if not member.is_meta:
                yield head + plain_name(name), member


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of wrappers and compilers."""
    for prefix in ("module.", "_orig_mod.", "_fsdp_wrapped_module."):
        name = f".{name}".replace(f".{prefix}", ".").removeprefix(".")
    return name


def wrap(module: nn.Module, function: Call) -> None:
    """Replace calls of ``module`` by ``function``. It gets the original call as its first argument,
    before those of the call.

    Uses the slot in which ``nn.Module.compile`` stores its compiled call: copies and pickles of the
    module do not include it, and inner modules are not touched.
    """
    # Not by setattr: a compiled module would pass it to the module inside.
    inner = module.__dict__.get("_compiled_call_impl") or module._call_impl
    module.__dict__["_compiled_call_impl"] = partial(function, inner)


def replacing(owner: Any, name: str) -> Callable[[Call], None]:
    """A decorator that replaces ``owner.name`` by a function. The function gets the original as its
    first argument, before those of the call."""
    original = getattr(owner, name)

    def put(function: Call) -> None:
        @wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, replaced)

    return put
