"""Watches a training from inside its process, and changes nothing: losses, gradients, updates,
modes."""

import functools
import hashlib
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from transformer_core.audit.relations import Finding, Notes, user_line
from transformer_core.audit.updates import Updates
from transformer_core.tune.boundaries import Boundaries, plain_name
from transformer_core.tune.sketches import Sketch, distance, norm, sketch

SAME = 1e-5
"""Weights of rows that differ by less are rounding."""
FOLLOWED_STEPS = 8
"""Optimizer steps whose updates are computed again."""
MODES_KEPT = 4096
MEAN_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)


@dataclass
class Rows:
    """One call of a loss: how much each of its rows counts in the gradient."""

    place: str
    kind: str
    count: int
    """Rows that count."""
    module: bool
    """Whether it was called inside a model's forward pass."""
    share: float = 0.0
    """Weight of a row in the loss that is differentiated; the mean if rows differ."""
    even: bool = True
    """Whether all rows have the same weight."""
    seen: bool = False


@dataclass
class Stepped:
    """One optimizer and what happened since its last step."""

    optimizer: Optimizer
    updates: Updates
    clean: bool = False
    """Whether its gradients were zero at the beginning of a backward pass since its last step."""
    steps: int = 0
    backwards: int = 0
    places: set[str] = field(default_factory=set)
    """Lines whose losses the last backward pass came from."""
    wiped: set[str] = field(default_factory=set)
    """Such lines of backward passes whose gradients were set to zero before the step."""
    schedules: Counter[int] = field(default_factory=Counter)


class Watcher:
    """Watches one process. :meth:`install` before the script's first line, :meth:`notes` at any
    time."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.found = Notes()
        self.rows: list[Rows] = []
        """Losses of the current step."""
        self.history: list[list[Rows]] = []
        """Losses of the first steps, for the comparison of ranks."""
        self.made: list[weakref.ref[Optimizer]] = []
        self.backward_depth = 0
        self.backwards = 0
        self.scale = 1.0
        """Factor of a gradient scaler."""
        self.forwards: list[nn.Module] = []
        """Modules whose forward passes are running, the outermost first."""
        self.random: list[str] = []
        """Digest of the random state at the first training pass."""
        self.modes: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self.roots: dict[int, nn.Module] = {}
        self.gradients: Counter[int] = Counter()
        """Steps in which a parameter had a gradient that is not zero."""
        self.first: dict[int, Sketch] = {}
        """Weights before the first step."""
        self.buffers: dict[int, dict[str, Sketch]] = {}
        """Buffers of outermost modules that are not saved, before the first step."""
        self.steps = 0
        self.ignored: set[int] = set()
        """Targets that losses leave out."""
        self.outside: list[tuple[str, Tensor, Any]] | None = None
        """Losses that the script computes from the model's results, if they are kept."""
        self._listening: list[tuple[str, Tensor, Any]] | None = None
        self._stepped: dict[int, Stepped] = {}
        self._evaluated: dict[int, int] = {}
        self._outputs: dict[int, list[Sketch]] = {}
        self._recomputes = False
        self._judged = 0
        """Losses of this step that belong to backward passes which have begun."""
        self._scaled = self._unscaled = -1
        """The numbers of the backward passes when a scaler scaled and unscaled last."""
        self._frozen: dict[int, tuple[nn.Parameter, Sketch]] = {}

    # -- hooks ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Hook torch in this process, after :meth:`Boundaries.install`."""
        modules = nn.modules.module
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        functional: Any = nn.functional
        for name in MEAN_LOSSES:
            setattr(functional, name, self._loss(getattr(functional, name), name))
        owners: list[Any] = [functional, torch, Tensor]
        for owner in owners:
            owner.log_softmax = self._log_softmax(owner.log_softmax)
        self._backward()
        self._optimizers()
        self._clipping()
        self._scaling()
        self._schedules()

    def listen(self, kept: list[tuple[str, Tensor, Any]] | None) -> None:
        """Keep the losses of a call made again, and watch nothing else, until told None."""
        self._listening = kept

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self._listening is not None:
            return
        self.forwards.append(module)
        if len(self.forwards) == 1 and not self.backward_depth:
            self._outermost(module)

    def _outermost(self, module: nn.Module) -> None:
        if next(module.parameters(), None) is None:
            return
        self.roots.setdefault(id(module), module)
        if not torch.is_grad_enabled():
            self._evaluated[id(module)] = self.steps
            return
        if not self.random:
            state = torch.get_rng_state().numpy().tobytes()
            self.random.append(hashlib.sha256(state).hexdigest())
            self._keep_buffers()
        kept = self.modes[id(module)]
        if len(kept) < MODES_KEPT:
            kept.append((self.steps, module.training))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self.forwards or self._listening is not None:
            return
        if self.forwards[-1] is module:
            self.forwards.pop()
        if self.backward_depth:
            self._recomputed(module, output)
        elif self._recomputes and torch.is_grad_enabled() and self.steps < FOLLOWED_STEPS:
            for each in _tensors(output):
                self._outputs.setdefault(id(module), []).append(sketch(each))
        elif self._recomputes and self.steps < FOLLOWED_STEPS and isinstance(output, Tensor):
            # A checkpoint written by hand runs its first pass without gradients.
            self._outputs.setdefault(id(module), []).append(sketch(output))

    def _recomputed(self, module: nn.Module, output: Any) -> None:
        """Compares a module that runs inside a backward pass with what it gave before."""
        self._recomputes = True
        before = self._outputs.get(id(module))
        if not before:
            return
        for each in _tensors(output):
            new = sketch(each)
            size = max(norm(new), 1e-30)
            gap = min((distance(new, old) / size for old in before), default=0.0)
            allowed = 64 * torch.finfo(each.dtype).eps
            self.found.holds("recomputed", "modules that run again in the backward pass")
            if gap > allowed:
                self.found.found(
                    Finding(
                        "recomputed",
                        self.name_of(module),
                        "computed again in the backward pass, it gives another result than in the "
                        "forward pass, so its gradient belongs to another function: dropout draws "
                        "other elements, or a mode or a format changed",
                        "let the recomputation restore the state of the random numbers "
                        "(preserve_rng_state=True) and the autocast of the forward pass",
                        gap,
                        allowed,
                    )
                )

    def _loss(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(input, target, *args, **kwargs)
            if torch.compiler.is_compiling() or not isinstance(input, Tensor):
                return found
            if self._listening is not None:
                self._listening.append((name, input, target))
                return found
            if self.outside is not None and not self.forwards:
                self.outside.append((name, *_kept(input, target)))
            self._expectation(name, input, target)
            if not torch.is_grad_enabled():
                self._evaluating(name)
            elif isinstance(found, Tensor) and found.requires_grad and not self.backward_depth:
                counted = self._counted(name, input, target, args, kwargs)
                self._weigh(found, name, counted, kwargs.get("reduction", "mean"))
            return found

        return loss

    def _counted(self, name: str, input: Tensor, target: Any, args: Any, kwargs: Any) -> Tensor:
        """Which rows of a loss count: bool, one for each."""
        if name in ("cross_entropy", "nll_loss") and isinstance(target, Tensor):
            if target.is_floating_point():
                return torch.ones(target.shape[0], dtype=torch.bool)
            ignored = kwargs.get("ignore_index", args[2] if len(args) > 2 else -100)
            self.ignored.add(ignored)
            return target != ignored
        return torch.ones(input.shape, dtype=torch.bool)

    def _weigh(self, found: Tensor, kind: str, counted: Tensor, reduction: str) -> None:
        count = int(counted.sum())
        rows = Rows(user_line(), kind, count, bool(self.forwards))
        self.rows.append(rows)

        def weigh(gradient: Tensor) -> None:
            gradient = gradient.detach().double()
            if gradient.numel() == 1:
                rows.share = float(gradient) / (count if reduction == "mean" and count else 1)
            elif gradient.numel() == counted.numel():
                weights = gradient.reshape(-1)[counted.reshape(-1).bool()]
                weights = weights[weights != 0]
                rows.count = len(weights)
                if len(weights):
                    rows.share = float(weights.mean())
                    spread = float(weights.max() - weights.min())
                    rows.even = spread <= SAME * abs(rows.share)
            else:
                return
            rows.seen = True

        found.register_hook(weigh)

    def _log_softmax(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Weights of rows where the script picks log-probabilities itself."""

        @functools.wraps(original)
        def log_softmax(input: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(input, *args, **kwargs)
            quiet = self._listening is not None or self.backward_depth
            if quiet or torch.compiler.is_compiling():
                return found
            if not torch.is_grad_enabled() or not found.requires_grad or found.dim() < 2:
                return found
            if "SoftmaxBackward" in type(input.grad_fn).__name__:
                self._expectation("cross_entropy", input.flatten(0, -2), None)
            rows = Rows(user_line(), "log_softmax", 0, bool(self.forwards))
            self.rows.append(rows)

            def weigh(gradient: Tensor) -> None:
                weights = -gradient.detach().double().sum(-1).reshape(-1)
                weights = weights[weights != 0]
                rows.count = len(weights)
                if len(weights):
                    rows.share = float(weights.mean())
                    spread = float(weights.max() - weights.min())
                    rows.even = spread <= SAME * abs(rows.share)
                    rows.seen = True

            found.register_hook(weigh)
            return found

        return log_softmax

    def _expectation(self, name: str, input: Tensor, target: Any) -> None:
        """Whether a loss gets logits where it takes logits."""
        if self.steps >= FOLLOWED_STEPS or input.numel() == 0:
            return
        self.found.holds("loss", "the arguments of the script's loss functions")
        with torch.no_grad():
            if name == "cross_entropy" and input.dim() > 1 and input.shape[1] > 1:
                rows = input.detach().float()
                sums = rows.sum(1)
                if float(rows.min()) >= 0 and float((sums - 1).abs().max()) < 1e-3:
                    self._wrong_loss(
                        "its rows are probabilities that sum to 1, so softmax is taken twice and "
                        "the gradient is far too small",
                        "hand the logits to cross_entropy, or the logarithm of the probabilities "
                        "to nll_loss",
                    )
            elif name == "nll_loss" and input.dim() > 1 and input.shape[1] > 1:
                rows = input.detach().float()
                total = rows.exp().sum(1) if float(rows.max()) <= 1e-3 else None
                if total is None or float((total - 1).abs().max()) > 1e-2:
                    self._wrong_loss(
                        "its rows are not the logarithms of probabilities",
                        "use log_softmax before nll_loss, or cross_entropy on the logits",
                    )
            elif name.endswith("with_logits") and "Sigmoid" in type(input.grad_fn).__name__:
                self._wrong_loss(
                    "the sigmoid is taken twice: before the loss and in it",
                    "hand the logits to it, or use binary_cross_entropy",
                )

    def _wrong_loss(self, cause: str, remedy: str) -> None:
        self.found.found(Finding("loss", user_line(), cause, remedy))

    def _evaluating(self, name: str) -> None:
        """A loss without gradients: all modules that were just called must be in evaluation
        mode."""
        for key, step in self._evaluated.items():
            module = self.roots[key]
            if step != self.steps or key not in self.modes:
                continue
            self.found.holds("evaluation", "modes of the model wherever a loss is computed")
            active = _active(module)
            if active and module.training:
                self.found.found(
                    Finding(
                        "evaluation",
                        f"{self.name_of(module)} at {user_line()}",
                        f"the loss is computed without gradients while {active} is in training "
                        "mode: the validation loss is that of another model",
                        "call model.eval() before the evaluation, and model.train() after it",
                    )
                )

    def _backward(self) -> None:
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.backward_depth:
                self._begin_backward()
            self.backward_depth += 1
            outer, self.forwards = self.forwards, []
            try:
                return original(*args, **kwargs)
            finally:
                self.forwards = outer
                self.backward_depth -= 1
                if not self.backward_depth:
                    self._outputs.clear()

        torch.autograd.backward = backward

    def _begin_backward(self) -> None:
        self.backwards += 1
        places = {rows.place for rows in self.rows[self._judged :]}
        self._judged = len(self.rows)
        for each in self._stepped.values():
            if self.steps < FOLLOWED_STEPS or not each.clean:
                empty = _no_gradients(each.optimizer)
                if empty and each.clean and each.backwards:
                    each.wiped |= each.places
                each.clean |= empty
            each.backwards += 1
            each.places = places

    def _optimizers(self) -> None:
        optimizer: Any = Optimizer
        original = optimizer.__init__

        @functools.wraps(original)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.made.append(weakref.ref(made))

        optimizer.__init__ = init

    def _clipping(self) -> None:
        utils: Any = nn.utils
        original = utils.clip_grad_norm_

        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            empty = given and all(p.grad is None for p in given)
            found = original(given, *args, **kwargs)
            scaled = self.scale != 1 and self._unscaled < self.backwards == self._scaled + 1
            if scaled and self.steps < FOLLOWED_STEPS:
                self.found.found(
                    Finding(
                        "zero",
                        f"clip_grad_norm_ at {user_line()}",
                        f"gradients are clipped while they are still {self.scale:g} times too "
                        "large, so nearly all of each is lost",
                        "call scaler.unscale_(optimizer) before gradients are clipped",
                        self.scale,
                        1.0,
                    )
                )
            if empty and self.steps < FOLLOWED_STEPS:
                self.found.found(
                    Finding(
                        "zero",
                        f"clip_grad_norm_ at {user_line()}",
                        "no tensor has a gradient where gradients are clipped, so clipping has no "
                        "effect",
                        "clip after the backward pass and before the optimizer's step",
                    )
                )
            return found

        utils.clip_grad_norm_ = clip
        utils.clip_grad.clip_grad_norm_ = clip

    def _scaling(self) -> None:
        scaler: Any = torch.amp.GradScaler
        original = scaler.scale

        @functools.wraps(original)
        def scale(made: Any, outputs: Any) -> Any:
            if made.is_enabled():
                self.scale, self._scaled = float(made.get_scale()), self.backwards
            return original(made, outputs)

        unscaling = scaler.unscale_

        @functools.wraps(unscaling)
        def unscale(made: Any, optimizer: Any) -> Any:
            self._unscaled = self.backwards
            return unscaling(made, optimizer)

        scaler.scale, scaler.unscale_ = scale, unscale

    def _schedules(self) -> None:
        schedule: Any = torch.optim.lr_scheduler.LRScheduler
        original = schedule.step

        @functools.wraps(original)
        def step(made: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(made, *args, **kwargs)
            stepped = self._stepped.get(id(getattr(made, "optimizer", None)))
            if stepped is not None:
                stepped.schedules[id(made)] += 1
            return found

        schedule.step = step

    # -- steps ---------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        known = self._stepped.get(id(optimizer))
        if known is None:
            names = {id(p): n for n, p in self.boundaries.parameters()}
            names |= {id(p): n for n, p in self._named()}
            known = Stepped(optimizer, Updates(optimizer, names), clean=True)
            known.backwards = self.backwards
            self._stepped[id(optimizer)] = known
        if not self.first:
            for _, parameter in self._named():
                self.first[id(parameter)] = sketch(parameter)
        for _, parameter in self._named():
            gradient = parameter.grad
            if gradient is not None and self.steps < 64 and bool((_local(gradient) != 0).any()):
                self.gradients[id(parameter)] += 1
        if self.steps >= FOLLOWED_STEPS:
            return
        self._frozen = {
            id(p): (p, sketch(p))
            for group in optimizer.param_groups
            for p in group["params"]
            if not p.requires_grad
        }
        if known.wiped & known.places:
            self.found.found(
                Finding(
                    "zero",
                    sorted(known.wiped & known.places)[0],
                    "gradients of earlier parts of the step are set to zero before the optimizer "
                    "uses them: only later parts count",
                    "call zero_grad() once a step, after step()",
                )
            )
        closure = (len(args) > 1 and callable(args[1])) or kwargs.get("closure")
        if known.updates.usable and not closure:
            known.updates.before()
        self._begun_at_zero(known, bool(closure))
        if known.steps and known.backwards and _no_gradients(optimizer) and not closure:
            self.found.found(
                Finding(
                    "zero",
                    type(optimizer).__name__,
                    "all gradients are zero when the optimizer steps, although a backward pass ran",
                    "call zero_grad() before the backward pass, not between it and step()",
                )
            )

    def _begun_at_zero(self, known: Stepped, closure: bool) -> None:
        if not known.steps or closure or not known.backwards:
            return
        self.found.holds("zero", "gradients at the beginning of the first backward pass of a step")
        if not known.clean:
            self.found.found(
                Finding(
                    "zero",
                    type(known.optimizer).__name__,
                    "the gradients of the step before are still there when the next backward pass "
                    "begins, and are added to it",
                    "call optimizer.zero_grad() once a step",
                )
            )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        known = self._stepped.get(id(optimizer))
        if known is None:
            return
        if self.steps < FOLLOWED_STEPS:
            self._judge_updates(known)
            for parameter, before in self._frozen.values():
                if distance(sketch(parameter), before) > 0:
                    self.found.found(
                        Finding(
                            "trained",
                            self.parameter_name(parameter),
                            "it does not require gradients, and the optimizer's step changes it all "
                            "the same: an old gradient, momentum or weight decay acts on",
                            "remove it from the optimizer, or set its gradient to None",
                        )
                    )
        for schedule, count in known.schedules.items():
            if count > 1 and known.steps > 1:
                known.schedules[schedule] = 0
                self.found.found(
                    Finding(
                        "schedule",
                        type(optimizer).__name__,
                        f"the schedule of its rate moves {count} times between two steps of the "
                        "optimizer, so the rate falls that many times too fast",
                        "call scheduler.step() once after each optimizer.step()",
                        float(count),
                        1.0,
                    )
                )
        if known.schedules:
            self.found.holds("schedule", "schedules between two steps of the optimizer")
        known.schedules.clear()
        known.steps += 1
        known.clean, known.backwards = False, 0
        known.wiped.clear()

    def _judge_updates(self, known: Stepped) -> None:
        name = type(known.optimizer).__name__
        if not known.updates.usable:
            self.found.cannot(
                "update", f"the formula of {name} with these options is not known here"
            )
            return
        for tensor, cause, measured, allowed in known.updates.after():
            lost = "rounding" in cause
            self.found.found(
                Finding(
                    "update",
                    f"{tensor} ({name})",
                    cause,
                    "keep master weights in float32"
                    if lost
                    else "compare the optimizer with torch.optim's of the same name",
                    measured,
                    allowed,
                )
            )
        if known.updates.steps:
            self.found.holds("update", f"{known.updates.steps} steps of {name}")

    def boundary(self) -> None:
        """Called at the end of each step."""
        if self.steps < FOLLOWED_STEPS:
            self._judge_rows()
            self.history.append([r for r in self.rows if r.seen])
        self.rows, self._judged = [], 0
        self.steps += 1

    def _judge_rows(self) -> None:
        """Rows of one step that come from one line have one weight; where they do not, and each
        call counts as much as any other, the loss is a mean of means."""
        places: dict[str, list[Rows]] = defaultdict(list)
        for rows in self.rows:
            if rows.seen and rows.count:
                places[f"{rows.kind} at {rows.place}"].append(rows)
        for place, calls in places.items():
            if len(calls) < 2:
                continue
            self.found.holds("parts", "weights of the rows of all parts of a step")
            finding = uneven(place, [(r.count, r.share) for r in calls], "parts")
            if finding is not None:
                self.found.found(finding)
            total = sum(r.count * r.share for r in calls) / self.scale
            even = all(r.even for r in calls)
            number = len(calls)
            if number != self._parts() or not even or abs(total - 1) < 1e-3:
                continue
            if abs(total / number - 1) < 1e-3:
                self.found.found(
                    Finding(
                        "parts",
                        place,
                        f"each of the {number} parts of a step counts as a whole batch: the "
                        "gradient is their sum instead of their mean",
                        f"divide the loss by {number}, or by the rows of the whole step",
                        total,
                        1.0,
                    )
                )
            elif abs(total * number - 1) < 1e-3:
                self.found.found(
                    Finding(
                        "parts",
                        place,
                        f"the loss of each of the {number} parts is divided by the parts twice: "
                        "the gradient is a fraction of their mean",
                        "divide by the rows of the whole step, or by the parts, not by both",
                        total,
                        1.0,
                    )
                )

    def _parts(self) -> int:
        """Backward passes since the last step of the optimizer that steps now."""
        return len(self.boundaries.losses)

    # -- afterwards ----------------------------------------------------------------------------

    def notes(self) -> dict[str, Any]:
        """Everything found so far, as JSON."""
        found = Notes.together([self.found])
        if self.steps:
            self._trained(found)
            self._modes(found)
        return {
            "notes": found.to_json(),
            "rows": [[(r.kind, r.place, r.count, r.share) for r in s] for s in self.history],
            "random": self.random,
            "dropout": any(_dropout(m) for m in self.roots.values()),
            "steps": self.steps,
            "data_parallel": self.data_parallel(),
        }

    def data_parallel(self) -> bool:
        """Whether a wrapper of torch averages gradients of replicas."""
        return any("DistributedDataParallel" in type(m).__name__ for m in self.roots.values())

    def _trained(self, found: Notes) -> None:
        kept = [o for ref in self.made if (o := ref()) is not None]
        held = {id(p) for o in kept for g in o.param_groups for p in g["params"]}
        stepped = {
            id(p)
            for each in self._stepped.values()
            for g in each.optimizer.param_groups
            for p in g["params"]
        }
        if not stepped:
            found.cannot("trained", "no optimizer of torch steps")
            return
        found.holds("trained", f"gradients and weights of {self.steps} steps")
        for key in self.modes:
            module = self.roots[key]
            mine = list(module.named_parameters())
            if not any(id(p) in stepped for _, p in mine) or not self._trains(key):
                continue
            for name, parameter in mine:
                if not parameter.requires_grad:
                    continue
                if id(parameter) not in held and self.gradients[id(parameter)]:
                    before = self.first.get(id(parameter))
                    if before is not None and distance(sketch(parameter), before) == 0:
                        found.found(
                            Finding(
                                "trained",
                                plain_name(name),
                                "it gets a gradient and is in no optimizer: it is never updated",
                                "give it to the optimizer, or set requires_grad to False",
                            )
                        )
            self._tied(module, found)

    def _trains(self, key: int) -> bool:
        return any(training for _, training in self.modes[key])

    def _tied(self, module: nn.Module, found: Notes) -> None:
        """A model that says its embedding and head are one, and has two."""
        for part in module.modules():
            config = getattr(part, "config", None)
            if not getattr(config, "tie_word_embeddings", False):
                continue
            try:
                one = part.get_input_embeddings().weight  # type: ignore[operator]
                two = part.get_output_embeddings().weight  # type: ignore[operator]
            except (AttributeError, NotImplementedError):
                continue
            if one is not two and one.shape == two.shape:
                found.found(
                    Finding(
                        "trained",
                        self.parameter_name(two),
                        "the configuration ties it to the embedding, and they are two tensors",
                        "call tie_weights() after the model is made, moved or loaded",
                    )
                )

    def _modes(self, found: Notes) -> None:
        """Training that goes on in evaluation mode after an evaluation."""
        for key, calls in self.modes.items():
            module = self.roots[key]
            steps = {step for step, _ in calls}
            if len(steps) < 3 or not any(training for _, training in calls):
                continue
            last_training = max(step for step, training in calls if training)
            later = {step for step, training in calls if step > last_training and not training}
            if len(later) > 1 and later == {step for step in steps if step > last_training}:
                active = _active(module)
                if active:
                    found.found(
                        Finding(
                            "evaluation",
                            f"{self.name_of(module)} from step {min(later) + 1} on",
                            f"training goes on in evaluation mode: {active} does nothing any more",
                            "call model.train() after each evaluation",
                        )
                    )

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Tensors of the models that require gradients and are held by an optimizer."""
        kept = [o for ref in self.made if (o := ref()) is not None]
        held = {id(p) for o in kept for g in o.param_groups for p in g["params"]}
        return [(n, p) for n, p in self._named() if p.requires_grad and id(p) in held]

    # -- names ---------------------------------------------------------------------------------

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        found = []
        for number, key in enumerate(self.modes):
            head = f"{number}." if number else ""
            found += [(head + plain_name(n), p) for n, p in self.roots[key].named_parameters()]
        return found

    def parameter_name(self, parameter: Tensor) -> str:
        """The name of a parameter in its model."""
        return next((n for n, p in self._named() if p is parameter), "a tensor")

    def name_of(self, module: nn.Module) -> str:
        """The name of a module in its model, with its class."""
        for root in self.roots.values():
            for name, part in root.named_modules():
                if part is module:
                    return f"{plain_name(name)} ({type(module).__name__})".lstrip()
        return type(module).__name__

    def _keep_buffers(self) -> None:
        for key, root in self.roots.items():
            saved = set(root.state_dict(keep_vars=True))
            self.buffers[key] = {
                n: sketch(b)
                for n, b in root.named_buffers()
                if n not in saved and b.is_floating_point()
            }


def uneven(place: str, calls: list[tuple[int, float]], relation: str) -> Finding | None:
    """A finding where rows count differently only because their calls have other numbers of rows:
    (rows, weight of a row) of each call."""
    shares = [share for _, share in calls]
    sums = [count * share for count, share in calls]
    largest = max(abs(s) for s in shares)
    if not largest or max(shares) - min(shares) <= SAME * largest:
        return None
    if max(sums) - min(sums) > SAME * max(abs(s) for s in sums):
        return None
    low, high = min(count for count, _ in calls), max(count for count, _ in calls)
    who = "ranks" if relation == "ranks" else "parts"
    return Finding(
        relation,
        place,
        f"a mean of means: the {len(calls)} {who} of a step have {low} to {high} rows and count "
        f"the same, so a row of one counts {high / low:.2g} times as much as a row of another",
        "add up the losses of all rows, and divide by the number of rows of the whole step",
        max(shares) / min(shares) - 1 if min(shares) else None,
        SAME,
    )


def _kept(*values: Any) -> list[Any]:
    return [v.detach().clone() if isinstance(v, Tensor) else v for v in values]


def _no_gradients(optimizer: Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and bool((_local(gradient) != 0).any()):
                return False
    return True


def _local(tensor: Tensor) -> Tensor:
    found: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.coalesce().values() if found.is_sparse else found


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [t for each in value for t in _tensors(each)]
    if isinstance(value, dict):
        return [t for each in value.values() for t in _tensors(each)]
    return []


def _dropout(module: nn.Module) -> bool:
    return any("Dropout" in type(p).__name__ and getattr(p, "p", None) for p in module.modules())


def _active(module: nn.Module) -> str:
    """The first part of a module that behaves otherwise in training."""
    for name, part in module.named_modules():
        drops = "Dropout" in type(part).__name__ and bool(getattr(part, "p", None))
        if drops or isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{plain_name(name)} ({type(part).__name__})"
    return ""
