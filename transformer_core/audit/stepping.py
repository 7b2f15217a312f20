"""Watches the steps of optimizers: gradients, clipping, scaling, schedules, updates."""

import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from transformer_core.audit.losses import FOLLOWED_STEPS, way
from transformer_core.audit.relations import Notes, caller, user_line
from transformer_core.audit.updates import Updates
from transformer_core.tune.boundaries import replacing
from transformer_core.tune.causes import some
from transformer_core.tune.nested import tensors
from transformer_core.tune.records import Sketch, distance, sketch

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

TORCH = f"{Path(torch.__file__).parent}/"
_RATIO = re.compile(r"(?<=the update is )[-+.\de]+ times")  # in a cause of an update that differs


@dataclass
class Stepped:
    """One optimizer, and the events since its last step."""

    optimizer: Optimizer
    updates: Updates
    clean: bool = False
    """Whether its gradients were zero when some backward pass since its last step began."""
    steps: int = 0
    backwards: int = 0
    places: set[str] = field(default_factory=set)  # lines of the last backward pass's losses
    wiped: set[str] = field(default_factory=set)
    """Lines of the losses whose gradients were set to zero before the step."""
    filled: bool = False
    """Whether some backward pass since its last step gave it a gradient other than zero."""
    overflowed: bool = False
    """Whether a gradient was not finite after the last backward pass: a script may leave out such a step."""
    schedules: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Moves of its schedules since its last step, by their ids."""
    beside: Counter[int] = field(default_factory=Counter)
    """Steps of other optimizers since its last step, by their ids."""
    used: tuple[Tensor, Sketch] | None = None
    """A tensor and its gradient in the last step, if a backward pass had computed it."""
    others: str = ""
    """The class of another optimizer that has stepped since backward passes gave its tensors a gradient."""
    differing: set[str] = field(default_factory=set)  # names of tensors whose updates were noted
    added_to: tuple[Tensor, Sketch] | None = None
    """A tensor and its gradient when the next backward pass after that began."""


class Stepping:
    """Watches the optimizers of one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch, self.notes = watch, watch.found
        self.made = WeakIdKeyDictionary()  # those that live: a script's own may have no hash
        self.scale = 1.0  # current scale of a gradient scaler
        self.stepped: dict[int, Stepped] = {}
        self.loose: dict[int, tuple[nn.Parameter, Sketch]] = {}
        """Weights that backward passes reach although no optimizer holds them, with their first values."""
        self._scaled = self._unscaled = -1
        """Number of backward passes when a scaler last scaled a loss and last unscaled gradients."""
        self._frozen: list[tuple[nn.Parameter, Sketch]] = []
        self._scheduled = False
        self._read: set[int] = set()
        """Ids of tensors whose gradients the script or a package of its own choice has read since the last
        backward pass began."""
        self._replaced: dict[int, bool] = {}
        """Whether a gradient was read before it was removed, or another took its place, since the last backward
        pass, by the ids of the tensors."""
        self._kept = WeakIdKeyDictionary()
        """Versions of the tensors of state dictionaries when a model handed them out."""
        self._versions: dict[int, int] = {}
        """Versions of parameters after the last step or loading, by their ids."""
        self._saved: dict[bool, str] = {}
        """Lines that save the state of an optimizer, with (True) and without its schedule."""

    def install(self) -> None:
        # A script may compile its steps: the compiler would trace what observes them, too.
        register_optimizer_step_pre_hook(torch.compiler.disable(self._before_step))
        register_optimizer_step_post_hook(torch.compiler.disable(self._after_step))
        for owner, name, function in (
            (torch.autograd, "backward", self._backward),
            (Optimizer, "__init__", self._made),
            (Optimizer, "load_state_dict", self._load_optimizer),
            (nn.utils, "clip_grad_norm_", self._clip),
            (torch.amp.GradScaler, "scale", self._scale),
            (torch.amp.GradScaler, "unscale_", self._unscale),
            (torch.amp.GradScaler, "step", self._step_of_scaler),
            (torch.optim.lr_scheduler.LRScheduler, "step", self._move_schedule),
            (torch, "save", self._save),
            (nn.Module, "state_dict", self._keep),
            (nn.Module, "load_state_dict", self._load),
        ):
            replacing(owner, name)(function)
        plain: Any = Tensor.grad

        def read(tensor: Tensor) -> Any:
            if _may_use(sys._getframe(1).f_code.co_filename):
                self._read.add(id(tensor))
            return plain.__get__(tensor)

        def write(tensor: Tensor, gradient: Any) -> None:
            read = id(tensor) in self._read
            if gradient is None or not read:
                self._replaced.setdefault(id(tensor), read)
            plain.__set__(tensor, gradient)

        Tensor.grad = property(read, write, plain.__delete__)  # type: ignore[assignment]
        nn.utils.clip_grad.clip_grad_norm_ = nn.utils.clip_grad_norm_

    def held(self) -> set[int]:
        """Ids of the parameters that some optimizer holds."""
        return parameters_of(self.made)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.watch.backward_depth:
            self._begin_backward()
        closely = self.watch.steps < FOLLOWED_STEPS
        # Ranks may put sharded weights together for a step alone.
        if closely and not kwargs.get("inputs") and "RANK" not in os.environ:
            self._keep_loose(tensors(args))
        self.watch.backward_depth += 1
        outer, self.watch.forwards = self.watch.forwards, []
        before = {key: _versions(each.optimizer) for key, each in self.stepped.items() if closely}
        try:
            return original(*args, **kwargs)
        finally:
            self.watch.forwards = outer
            self.watch.backward_depth -= 1
            if not self.watch.backward_depth:
                self.watch.outputs.clear()
                self._replaced.clear()
                if closely:
                    for key, each in self.stepped.items():
                        changed = before.get(key) != _versions(each.optimizer)
                        each.filled |= changed and not _no_gradients(each.optimizer)
                        each.overflowed = not all(map(_is_finite, _held(each.optimizer)))

    def _keep_loose(self, losses: list[Tensor]) -> None:
        """Keeps weights near the end of losses that no optimizer holds."""
        known = self.held() | self.loose.keys()
        for node in way(losses):
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, nn.Parameter) and id(leaf) not in known:
                self.loose[id(leaf)] = leaf, sketch(leaf)

    def _begin_backward(self) -> None:
        if self.watch.half and self._scaled < 0:
            self.notes.found(
                "zero",
                f"a backward pass at {user_line()}",
                "the model runs in float16 and no scaler scales the loss: gradients below 6e-8 become "
                "zero",
                "use torch.amp.GradScaler, or autocast to bfloat16",
                sure=False,  # a script may scale the loss itself
            )
        own = [p for each in self.made for p in self._added_to(each)]
        empty = bool(own or not self.made) and not any(map(_has_gradient, own))
        if self.watch.steps < FOLLOWED_STEPS and empty:
            # Earlier losses of this step have no part in its gradient.
            for rows in self.watch.losses.rows[: self.watch.losses.judged]:
                rows.seen = False
            self.watch.losses.lost = len(self.watch.boundaries.losses)
        places = {rows.place for rows in self.watch.losses.rows[self.watch.losses.judged :]}
        self.watch.losses.judged = len(self.watch.losses.rows)
        for each in self.stepped.values():
            if self.watch.steps < FOLLOWED_STEPS or not each.clean:
                own = self._added_to(each.optimizer)
                empty = not any(map(_has_gradient, own))
                # Gradients that the script has read are used: by an attack, by SAM, for a penalty. Those of before
                # a step of another optimizer are of its loss.
                used = self._read or each.overflowed or each.beside
                if own and empty and each.filled and each.backwards and not used:
                    each.wiped |= each.places
                each.clean |= empty
                if empty:
                    each.others, each.added_to = "", None
                elif each.others and each.added_to is None:
                    tensor = next(filter(_has_gradient, own))
                    each.added_to = tensor, sketch(tensor.grad)
            each.backwards += 1
            each.places = places
        self._read.clear()

    def _added_to(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """The tensors of an optimizer to whose gradients backward passes add, unless they are frozen for a while.
        Copies in another precision get their gradients by hand."""
        named = {id(p) for _, p in self.watch.named()}
        return [p for p in _held(optimizer) if p.requires_grad or id(p) in named]

    def _made(self, original: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        self.made[made] = True

    def _load_optimizer(self, original: Any, made: Any, *args: Any, **kwargs: Any) -> Any:
        """After a search for a rate, say, an optimizer begins again with other moments."""
        found = original(made, *args, **kwargs)
        if known := self.stepped.get(id(made)):
            known.updates.forget()
        return found

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if self.watch.steps >= FOLLOWED_STEPS:
            return original(given, *args, **kwargs)
        empty = given and all(p.grad is None for p in given)
        # Without a limit, it only measures the norm.
        limited = math.isfinite(float(kwargs.get("max_norm", args[0] if args else 0)))
        ids = {id(p) for p in given}
        late = limited and any(
            _reused(each) and ids.intersection(map(id, _held(each.optimizer)))
            for each in self.stepped.values()
        )
        where = f"clip_grad_norm_ at {user_line()}"
        if self.scale != 1 and self._unscaled < self.watch.boundaries.backwards == self._scaled + 1:
            self.notes.found(
                "zero",
                where,
                f"gradients are clipped while they are still {self.scale:g} times too large, so "
                "nearly all of each is lost",
                "call scaler.unscale_(optimizer) before gradients are clipped",
                self.scale,
                1.0,
            )
        if empty or late:
            why = "no tensor has a gradient" if empty else "the optimizer has already stepped"
            self.notes.found(
                "zero",
                where,
                f"{why} where gradients are clipped, so clipping has no effect",
                "clip after the backward pass and before the optimizer's step",
            )
        return original(given, *args, **kwargs)

    def _scale(self, original: Any, made: Any, outputs: Any) -> Any:
        if made.is_enabled():
            self.scale, self._scaled = float(made.get_scale()), self.watch.boundaries.backwards
        return original(made, outputs)

    def _unscale(self, original: Any, made: Any, optimizer: Any) -> Any:
        self._unscaled = self.watch.boundaries.backwards
        return original(made, optimizer)

    def _step_of_scaler(
        self, original: Any, made: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        known = self.stepped.get(id(optimizer))
        steps = known.steps if known is not None else 0
        found = original(made, optimizer, *args, **kwargs)
        if known is not None and known.steps == steps:
            known.schedules.clear()  # After a step that the scaler left out, schedules move all the same.
        return found

    def _move_schedule(self, original: Any, made: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(made, *args, **kwargs)
        if type(made) is CosineAnnealingLR and made.last_epoch > made.T_max:
            self.notes.found(
                "schedule",
                f"CosineAnnealingLR of {type(made.optimizer).__name__}",
                f"its rate falls for T_max = {made.T_max} moves; after that, it rises again",
                "give T_max the number of all moves, in the same unit: steps or epochs",
                sure=False,
            )
        optimizer: Any = getattr(made, "optimizer", None)
        while id(optimizer) not in self.stepped and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer  # as in the wrapper of accelerate
        stepped = self.stepped.get(id(optimizer))
        if stepped is not None:
            self._scheduled = True
            stepped.schedules[id(made)] += _share_of_move()
        return found

    def _save(self, original: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        keys = _keys(obj)
        if "last_epoch" in keys or ("param_groups" in keys and self._scheduled):
            self._saved.setdefault("last_epoch" in keys, user_line())
        return original(obj, *args, **kwargs)

    def _keep(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(module, *args, **kwargs)
        if not args and kwargs.get("destination") is None:  # Inner modules fill an outer one's.
            for each in found.values():
                if isinstance(each, Tensor):
                    self._kept[each] = each._version
        return found

    def _load(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a state that consists of the model's own weights, which have changed since."""
        state = args[0] if args else kwargs.get("state_dict")
        weights = state if isinstance(state, Mapping) else {}
        own = [(weights.get(name), p) for name, p in module.named_parameters()]
        shared = own and all(
            isinstance(kept, Tensor) and kept is not p and _same_memory(kept, p) for kept, p in own
        )
        # A script may also have changed them in place since the last step, and loads them to no effect.
        changed = [p for kept, p in own if shared and p._version > self._kept.get(kept, p._version)]
        if changed and all(p._version == self._versions.get(id(p)) for p in changed):
            self.notes.found(
                "state",
                f"load_state_dict at {user_line()}",
                "the state consists of references to the model's own weights, which have changed "
                "since it was kept: nothing is restored",
                "keep copy.deepcopy(model.state_dict())",
            )
        found = original(module, *args, **kwargs)
        self._note_versions(module.parameters())
        return found

    def _note_versions(self, parameters: Iterable[Tensor]) -> None:
        if self._kept:
            self._versions |= {id(p): p._version for p in parameters}

    def saved(self, found: Notes) -> None:
        """Notes a checkpoint with an optimizer but without its schedule."""
        if not self._saved:
            return
        found.holds("state", "schedules in the checkpoints that the script writes")
        if True not in self._saved:
            found.found(
                "state",
                f"torch.save at {self._saved[False]}",
                "it saves the optimizer without its schedule: unless the script recomputes the "
                "step, a resumed training begins with the first rate",
                "save and load scheduler.state_dict() too",
                sure=False,
            )

    def decayed(self, found: Notes) -> None:
        """Notes norms that decay although the optimizer spares biases, and biases that decay although it has
        a group without decay."""
        names = {id(p): name for name, p in self.watch.named()}
        norms = {
            id(getattr(part, "weight", None))
            for root in self.watch.roots.values()
            for part in root.modules()
            if "Norm" in type(part).__name__
        }
        for known in self.stepped.values():
            groups = known.optimizer.param_groups
            spared, decaying = (
                [p for g in groups if _decays(g) == decays for p in g["params"]]
                for decays in (False, True)
            )
            empty = any(not _decays(g) and not g["params"] for g in groups)
            biases = any(names.get(id(p), "").endswith("bias") for p in spared)
            wrong = [names[id(p)] for p in decaying if id(p) in norms and id(p) in names]
            if biases and wrong:
                found.found(
                    "trained",
                    some(wrong),
                    "weights of norms decay, although the optimizer's groups spare biases from decay: "
                    "their names may not be those that the script looks for",
                    "choose the tensors without decay by their modules or shapes",
                    sure=False,
                )
            wrong = [n for p in decaying if (n := names.get(id(p), "")).endswith("bias")]
            if empty and wrong:
                found.found(
                    "trained",
                    some(wrong),
                    "biases decay, and the optimizer's group without decay is empty: no name may be one of "
                    "those that the script looks for",
                    "look for a part of each name, or choose the tensors by their modules or shapes",
                    sure=False,
                )

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        known = self.stepped.get(id(optimizer))
        if known is None:
            names = {id(p): n for n, p in self.watch.boundaries.parameters()}
            names |= {id(p): n for n, p in self.watch.named()}
            begun = self.watch.boundaries.backwards
            known = Stepped(optimizer, Updates(optimizer, names), True, backwards=begun)
            self.stepped[id(optimizer)] = known
        if not self.watch.first:
            self.watch.first = {id(p): sketch(p) for _, p in self.watch.named()}
        if self.watch.steps < 64:
            for _, parameter in self.watch.named():
                if parameter.grad is not None or id(parameter) in self._replaced:
                    self.watch.gradients[id(parameter)] += _has_gradient(parameter)
        if self.watch.steps >= FOLLOWED_STEPS:
            return
        # Copies in another precision, which get their gradients by hand, are not frozen.
        frozen = {id(p) for _, p in self.watch.named() if not p.requires_grad}
        self._frozen = [(p, sketch(p)) for p in _held(optimizer) if id(p) in frozen]
        if known.wiped & known.places:
            self.notes.found(
                "zero",
                sorted(known.wiped & known.places)[0],
                "gradients of earlier parts of the step are set to zero before the optimizer "
                "uses them: only later parts count",
                "call zero_grad() once a step, after step()",
            )
        closure = (len(args) > 1 and callable(args[1])) or kwargs.get("closure")
        if closure:
            for relation in ("update", "zero"):
                self.notes.cannot(relation, "the optimizer computes its gradients in a closure")
        elif _reused(known):
            self.notes.found(
                "zero",
                type(optimizer).__name__,
                "it steps twice with the same gradients, without a backward pass in between",
                "call optimizer.step() once a step; with a scaler, only scaler.step(optimizer)",
            )
        elif known.backwards:
            held = next((p for p in _held(optimizer) if _has_gradient(p)), None)
            known.used = None if held is None else (held, sketch(held.grad))
        if known.updates.usable and not closure:
            known.updates.before()
        if known.steps and known.backwards and not closure:
            self._judge_gradients(known)

    def _judge_gradients(self, known: Stepped) -> None:
        """Notes gradients that are incomplete, or not those of the optimizer's own loss, where it uses them."""
        optimizer, name = known.optimizer, type(known.optimizer).__name__
        self.notes.holds("zero", "gradients at the beginning of the first backward pass of a step")
        # A script may compute new ones by torch.autograd.grad, and put them there.
        replaced = {self._replaced.get(id(p)) for p in _held(optimizer) if p.grad is not None}
        if not known.clean and replaced - {False}:
            self.notes.found(
                "zero",
                name,
                "the gradients of the previous step still exist when the next backward pass "
                "begins, and are added to it",
                "call optimizer.zero_grad() once a step",
                sure=None in replaced,  # new ones may or may not come from those that were read
            )
        if known.added_to is not None:
            tensor, before = known.added_to
            if tensor.grad is not None and distance(sketch(tensor.grad), before) > 0:
                self.notes.found(
                    "zero",
                    name,
                    f"its gradients add up backward passes before and after a step of another optimizer "
                    f"({known.others}): those of the other's loss may be left in them",
                    "call zero_grad() before the backward pass of its own loss, or freeze its tensors "
                    "during the other's",
                    sure=False,  # a script may accumulate over several steps of the other
                )
        if _no_gradients(optimizer):
            cause = "all gradients are zero when the optimizer steps, although a backward pass ran"
            remedy = "call zero_grad() before the backward pass, not between it and step()"
            if not known.filled:
                cause = (
                    "all gradients are zero when the optimizer steps: the loss of its backward pass does "
                    "not depend on its tensors"
                )
                remedy = (
                    "look for a factor of 0, such as frozen weights that begin at 0, a detached term, and a "
                    "penalty on gradients without create_graph=True; a hinge may also be 0 for all samples"
                )
            self.notes.found("zero", name, cause, remedy, sure=known.filled)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._note_versions(_held(optimizer))
        known = self.stepped.get(id(optimizer))
        if known is None:
            return
        if self.watch.steps < FOLLOWED_STEPS:
            self._judge_updates(known)
            for parameter, before in self._frozen:
                if distance(sketch(parameter), before) > 0:
                    self.notes.found(
                        "trained",
                        self.watch.parameter_name(parameter),
                        "it does not require gradients, but the optimizer's step changes it: an old "
                        "gradient, momentum or weight decay still acts on it",
                        "remove it from the optimizer, or set its gradient to None",
                    )
        for count in known.schedules.values():
            if round(count, 6) > 1 and known.steps > 1:
                # A script may count the moves in steps of another optimizer, such as that of a critic.
                sure = round(count, 6) > max(known.beside.values(), default=0)
                self.notes.found(
                    "schedule",
                    type(optimizer).__name__,
                    f"the schedule of its rate moves {count:.6g} times between two steps of the "
                    "optimizer, so the rate changes that many times too fast"
                    + (
                        "" if sure else ", unless its length is given in steps of another optimizer"
                    ),
                    "call scheduler.step() once after each optimizer.step()",
                    count,
                    1.0,
                    sure=sure,
                )
        if known.schedules:
            self.notes.holds("schedule", "schedules between two steps of the optimizer")
        known.schedules.clear()
        known.beside.clear()
        others = [each for each in self.stepped.values() if each is not known]
        for each in others:
            each.beside[id(optimizer)] += 1
        known.steps += 1
        known.clean, known.backwards, known.filled = False, 0, False
        known.others, known.added_to = "", None
        known.wiped.clear()
        if self.watch.steps < FOLLOWED_STEPS:
            for each in others:
                if each.backwards and not _no_gradients(each.optimizer):
                    each.others = type(optimizer).__name__

    def _judge_updates(self, known: Stepped) -> None:
        name = type(known.optimizer).__name__
        if not known.updates.usable:
            self.notes.cannot(
                "update", f"the formula of {name} with these options is not known here"
            )
            return
        alike: dict[str, list[tuple[str, str, float, float]]] = defaultdict(list)
        for each in known.updates.after():
            if each[0] not in known.differing:
                known.differing.add(each[0])
                alike[_RATIO.sub("", each[1])].append(each)
        for found in alike.values():
            tensors, causes, measured, allowed = zip(*found, strict=True)
            ratios = sorted(float(n.split()[0]) for c in causes for n in _RATIO.findall(c))
            cause = causes[0]
            if len(ratios) > 1:
                cause = _RATIO.sub(f"{ratios[0]:.3g} to {ratios[-1]:.3g} times", cause)
            lost = "rounding" in cause
            remedy = "compare the optimizer with torch.optim's of the same name"
            if known.updates.of_library:
                package = type(known.optimizer).step.__module__.partition(".")[0]
                remedy = f"check whether {package} uses this name for a different formula"
            self.notes.found(
                "update",
                f"{some(list(tensors))} ({name})",
                cause,
                "keep master weights in float32" if lost else remedy,
                max(measured),
                max(allowed),
                # Some train in 16 bits on purpose. To fairseq, Adam is what others call AdamW.
                sure=not (lost or known.updates.of_library),
            )
        if known.updates.steps:
            self.notes.holds("update", f"{known.updates.steps} steps of {name}")
        elif known.updates.other:
            self.notes.cannot("update", f"{name} keeps state other than moments of the gradients")


def _may_use(file: str) -> bool:
    """Whether code in a file reads a gradient to use it, as an optimizer of sharpness-aware minimization does:
    not torch, which clips it, nor this tool."""
    return not file.startswith(("<", TORCH)) and "/transformer_core/" not in file


def _share_of_move() -> float:
    """1 for a move of a schedule. accelerate moves it once for each of its processes, as it counts batches: these
    moves are one."""
    frame = caller()
    if frame is None or frame.f_globals.get("__name__") != "accelerate.scheduler":
        return 1.0
    return 1 / frame.f_locals.get("num_processes", 1)


def _same_memory(one: Tensor, two: Tensor) -> bool:
    sharded = hasattr(one, "to_local") or hasattr(two, "to_local")  # without memory of their own
    return not sharded and one.data_ptr() == two.data_ptr()


def _keys(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    own = {key for key in value if isinstance(key, str)}
    return own.union(*(_keys(each) for each in value.values()))


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """Ids of the parameters that some of the optimizers hold."""
    return {id(parameter) for each in optimizers for parameter in _held(each)}


def _reused(known: Stepped) -> bool:
    """Whether an optimizer has already stepped with the gradients that its tensors have now."""
    if known.used is None or known.backwards:
        return False
    tensor, before = known.used
    return tensor.grad is not None and distance(sketch(tensor.grad), before) == 0


def _versions(optimizer: Optimizer) -> list[Any]:
    """Which gradients its tensors have, and how often each was changed in place. Shards count as changed."""
    own = [p.grad for p in _held(optimizer) if p.grad is not None]
    return [object() if hasattr(each, "to_local") else (id(each), each._version) for each in own]


def _no_gradients(optimizer: Optimizer) -> bool:
    return not any(map(_has_gradient, _held(optimizer)))


def _has_gradient(parameter: Tensor) -> bool:
    """Whether this rank's shard of a parameter has a gradient that is not zero."""
    numbers = _numbers(parameter)
    return numbers is not None and bool((numbers != 0).any())


def _is_finite(parameter: Tensor) -> bool:
    """Whether this rank's shard of a gradient has finite numbers alone."""
    numbers = _numbers(parameter)
    return numbers is None or bool(numbers.isfinite().all())


def _numbers(parameter: Tensor) -> Tensor | None:
    """The numbers of this rank's shard of a gradient; None without a gradient."""
    gradient: Any = parameter.grad
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local.coalesce().values() if local is not None and local.is_sparse else local


def _decays(group: dict[str, Any]) -> bool:
    return bool(group.get("weight_decay") or group.get("weight_decay_rate"))
