"""One process of an audit: the user's script, watched, and at the end of its turn probed.

Started by :mod:`transformer_core.tune.coordinator`, as the process of a side.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from transformer_core.audit import probes, slope
from transformer_core.audit.relations import Finding, user_line
from transformer_core.audit.replay import Call, State, mapped, tensors
from transformer_core.audit.watcher import Watcher
from transformer_core.tune.order import Order
from transformer_core.tune.side import Side, run

OWN, TWIN, EAGER, KEPT = "own", "twin", "eager", "kept"
PROBE_SECONDS = 60.0
MOST_CALLS = 4
MOST_FUNCTIONS = 8


def kept(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a checkpoint that keeps all results."""
    own = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug")
    named = {key: value for key, value in kwargs.items() if key not in (*own, "early_stop")}
    return function(*args, **named)


def _note_used(found: Any, used: dict[int, Tensor]) -> None:
    """Keeps, at the backward pass, which numbers of results get a gradient."""
    for number, each in enumerate(tensors(found)):
        if each.requires_grad:
            each.register_hook(lambda g, n=number: used.update({n: g != 0}))


class Audited(Side):
    """The script's process: the side ``own`` is watched, ``twin`` is left alone while it is compared
    with ``own``, and probed in its next step."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.watcher = Watcher(self.boundaries)
        self.calls: list[Call] = []
        self.functions: list[slope.Kept] = []
        self.used: dict[str, bool] = {}
        self.armed = False
        self._looking = False

    def prepare(self) -> None:
        """Watch, beside what every side does."""
        if self.order.side == EAGER:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
            torch._dynamo.config.disable = True
        if self.order.side == KEPT:
            torch.utils.checkpoint.checkpoint = kept
        super().prepare()
        self.watcher.install()
        original = torch.autograd.Function.__dict__["apply"].__func__
        side = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            used = side._function(cls, args, kwargs)
            found = original(cls, *args, **kwargs)
            if used is not None:
                _note_used(found, used)
            if side.armed and cls.__module__.split(".")[0] != "torch":
                side._used(cls, found)
            return found

        if self.order.side == TWIN:
            torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
            nn.modules.module.register_module_forward_hook(self._output)

    def _used(self, cls: Any, found: Any) -> None:
        """Whether the result of a function gets a gradient."""
        results = [each for each in tensors(found) if each.requires_grad]
        if results and torch.is_grad_enabled():
            name = f"{cls.__name__} at {user_line()}"
            self.used.setdefault(name, False)
            for each in results:
                each.register_hook(lambda g: self.used.update({name: True}))

    def _function(self, cls: Any, args: Any, kwargs: Any) -> dict[int, Tensor] | None:
        """Keeps a call of a function whose backward pass is written by hand. Gives the place for
        which numbers of its results get a gradient; None if the call is not kept."""
        if not self.armed or kwargs or cls.__module__.split(".")[0] == "torch":
            return None
        known = {each[0] for each in self.functions}
        plain = all(isinstance(a, Tensor | int | float | bool | str | None) for a in args)
        if plain and len(known) < MOST_FUNCTIONS and cls not in known and torch.is_grad_enabled():
            kept = [
                a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
                for a in args
            ]
            self.functions.append((cls, kept, user_line(), {}))
            return self.functions[-1][3]
        return None

    def _note_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        super()._note_inputs(module, args, kwargs)
        if self.armed and len(self.calls) < MOST_CALLS:
            device = next((p.device.type for p in module.parameters()), "cpu")
            cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            given, named = mapped((args, kwargs), lambda t: t.detach().clone())
            self.calls.append(Call(module, given, named, State(), cast))

    def _output(self, module: nn.Module, args: Any, output: Any) -> None:
        """Which results of a model get a gradient."""
        if not self.armed or not self.calls or self.calls[-1].module is not module:
            return
        call = self.calls[-1]
        for number, each in enumerate(tensors(output)):
            if each.requires_grad:
                each.register_hook(lambda g, n=number: call.used.add(n))

    def _wait(self) -> None:
        super()._wait()
        # The turn after the recorded ones is the one that is probed.
        self.armed = self.order.side == TWIN and self.step > 0 and not self.recording
        if self.armed:
            self.watcher.outside = []

    def _boundary(self) -> None:
        self.watcher.boundary()
        if self.armed:
            self.armed = False
            self._probe()
        super()._boundary()

    def _probe(self) -> None:
        began = time.monotonic()

        def left() -> float:
            return PROBE_SECONDS - (time.monotonic() - began)

        outside, self.watcher.outside = self.watcher.outside or [], None
        notes = self.watcher.found
        sharded = any(
            "FullyShard" in type(m).__name__ or "FSDP" in type(m).__name__
            for m in self.boundaries.modules
        )
        if sharded or not self.calls:
            why = "its weights are sharded over ranks" if sharded else "no call of a model is seen"
            for relation in ("samples", "later", "shift", "padding", "documents", "precision"):
                notes.cannot(relation, why)
        else:
            seen: set[int] = set()
            for call in self.calls:
                if id(call.module) not in seen:
                    seen.add(id(call.module))
                    probes.Probes(call, self.watcher, outside).run(left)
            suspects = {
                id(p): name
                for name, p in self.watcher.trainable()
                if not self.watcher.gradients[id(p)]
            }
            if suspects and self.step > 1:
                probes.detached(self.calls, self.watcher, suspects, notes)
        slope.functions(self.functions, notes)
        for name, used in self.used.items():
            if not used:
                notes.found(
                    Finding(
                        "slope",
                        name,
                        "its backward pass never runs: its result is thrown away",
                        "use the result of apply() in place of its argument",
                        sure=False,
                    )
                )
        if not self.functions:
            notes.cannot("slope", "the script has no backward pass written by hand")
        self.calls = []

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"audit": self.watcher.notes(), "backwards_done": self.step}

    def last_words(self) -> dict[str, Any]:
        """Everything found so far."""
        return {"facts": self._facts()}


if __name__ == "__main__":
    run(Order.read(Path(sys.argv[1])), Audited)
