"""Watches losses, gradients, updates and modes of a training from inside its process, without changing
anything."""

import gc
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils.data import DataLoader, DistributedSampler

from transformer_core.audit.axes import Axes
from transformer_core.audit.losses import FOLLOWED_STEPS, Losses
from transformer_core.audit.relations import Notes, user_line
from transformer_core.audit.stepping import Stepping, parameters_of
from transformer_core.audit.terms import Terms
from transformer_core.tune.boundaries import (
    Boundaries,
    members,
    parameters_now,
    plain_name,
    replacing,
    transformed,
)
from transformer_core.tune.causes import some
from transformer_core.tune.facts import device_of
from transformer_core.tune.nested import tensors
from transformer_core.tune.records import Sketch, distance, norm, sketch

MODES_KEPT = 4096
State = tuple[dict[str, Sketch], dict[str, Sketch]]  # weights and buffers of a model, by name
LOST = (
    "it gets a gradient but is in no optimizer: it is never updated",
    "give it to the optimizer, or set requires_grad to False",
)
"""Cause and remedy if no optimizer holds a tensor."""
EVALUATIONS = 4  # of a copy of the model in which its weights are compared with those before


class Watcher:
    """Watches one process. Call :meth:`install` before the script's first line, :meth:`notes` at any
    time."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.found = Notes()
        self.losses, self.stepping = Losses(self), Stepping(self)
        self.terms, self.axes = Terms(self), Axes(self)
        self.steps = 0
        self.backward_depth = 0
        self.forwards: list[nn.Module] = []  # those that are running, the outermost first
        self.called = 0  # calls of models that have begun
        self.random = ""  # digest of the random state at the first training pass; empty before it
        self.shares: list[tuple[int, int, int]] = []
        """Rank, seed and epoch of each pass over this rank's share of the data."""
        self._epochs: dict[int, list[int]] = defaultdict(list)  # of the passes of each sampler
        self._frozen: dict[int, tuple[nn.Module, bool]] = {}
        """Normalizations that collect statistics while a model trains, and whether their weights were frozen
        each time."""
        self._members: set[int] = set()  # ids of the modules of the model that runs
        self._unknown: dict[str, tuple[int, list[nn.Module]]] = {}
        """Modules with weights that run inside a model which does not know them: by the line that calls
        them, the step of its first call, and the modules of that step."""
        self.loaders: dict[str, DataLoader[Any]] = {}  # the first of each class of data sets
        self.modes: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._acted: set[int] = set()
        """Ids of models some of whose parts have acted otherwise than in evaluation."""
        self.roots: dict[int, nn.Module] = {}
        self.gradients: Counter[int] = Counter()
        """Number of steps in which a parameter had a gradient other than zero, by the ids of those that had any."""
        self.half = False  # whether a model has run with gradients under autocast to float16
        self._dropping: dict[int, tuple[nn.Module, str, str]] = {}
        """Models that ran without gradients while a dropout was in training mode: with its name, and the
        line of the call."""
        self.first: dict[int, Sketch] = {}  # weights before the first step
        self.outside: list[tuple[str, Tensor, Any]] | None = None
        """Losses that the script computes from the model's results; None if they are not kept."""
        self.listening: list[tuple[str, Tensor, Any]] | None = None
        """Losses of a repeated call; then nothing else is watched. None if no call is repeated."""
        self.outputs: dict[int, list[Sketch]] = {}
        """Results of modules in this forward pass, if some modules are recomputed."""
        self.recomputes = False
        self._evaluated: dict[int, int] = {}
        self._batches: dict[tuple[int, bool], list[Tensor]] = {}
        """The tensors of a model's last call with (True) and without gradients."""
        self._suspected: tuple[int, list[Tensor], Tensor | None, dict[str, Any]] | None = None
        """A model, its batch, targets and a finding, unless this step trains on the same batch."""
        self._copies: dict[int, list[State]] = defaultdict(list)
        """Weights and buffers of models that are not trained, in their first evaluations."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is watched: in a compiler, in torch.func, in a repeated call, in a backward pass."""
        if torch.compiler.is_compiling() or transformed():
            return True
        return self.listening is not None or self.backward_depth > 0

    @property
    def closely(self) -> bool:
        """Whether each operation is watched, as in the first steps."""
        return not self.quiet and self.steps < FOLLOWED_STEPS

    # -- hooks ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Hook torch in this process, after :meth:`Boundaries.install`."""
        modules = nn.modules.module
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)
        self.losses.install()
        self.stepping.install()
        self.terms.install()
        self.axes.install()
        replacing(DistributedSampler, "__iter__")(self._share)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or transformed() or self.listening is not None:
            return
        self.forwards.append(module)
        if self.backward_depth:
            return
        closely = self.steps < FOLLOWED_STEPS and torch.is_grad_enabled()
        if len(self.forwards) == 1:
            self._members = {id(part) for part in module.modules()} if closely else set()
            self._outermost(module, args)
        elif closely:
            self._inner(module)

    def _inner(self, module: nn.Module) -> None:
        """Notes normalizations that collect statistics although they are frozen, modules that no model
        knows, and lines that create such a module again in each forward pass."""
        weights = [p for p in module._parameters.values() if p is not None]
        collects = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        if collects and module.track_running_stats and weights:
            # In a GAN, the discriminator is frozen only while the generator trains.
            frozen = not weights[0].requires_grad
            _, always = self._frozen.get(id(module), (module, True))
            self._frozen[id(module)] = module, always and frozen
        if not weights or id(module) in self._members:
            return
        place = user_line()
        step, unknown = self._unknown.setdefault(place, (self.steps, []))
        if any(module is each for each in unknown):
            return
        if step == self.steps:
            unknown.append(module)
        elif any(p.requires_grad for p in weights):
            unknown.clear()
            random = any(p.dim() > 1 for p in weights)
            self.found.found(
                "trained",
                f"{type(module).__name__} at {place}",
                "each forward pass creates this module again, so it is never trained"
                + (" and its weights are drawn at random each time" if random else ""),
                "create it once, in the model's __init__, and call it here",
                sure=random,  # a normalization may do without its weights
            )

    def _outermost(self, module: nn.Module, args: Any = ()) -> None:
        if isinstance(module, ParametrizationList):
            return  # It computes a weight that is read outside a model.
        if all(p.is_meta for p in parameters_now(module)):
            # A script may call the parts of a model one by one.
            if _drops(module) and torch.is_grad_enabled():
                self.roots.setdefault(id(module), module)
                self._note_mode(module)
            return
        self.roots.setdefault(id(module), module)
        self.called += 1
        given = [each.detach() for each in tensors(args, floating=False)]
        self._batches[id(module), torch.is_grad_enabled()] = given
        if not torch.is_grad_enabled():
            if id(module) not in self.modes and self._evaluated.get(id(module)) != self.steps:
                self._copy(module)
                self._drops_alone(module)
            self._evaluated[id(module)] = self.steps
            return
        self._evaluated.pop(id(module), None)  # such as a first pass for the input of this one
        device = device_of(module)
        # A frozen model, such as a teacher, has no gradients that could be lost.
        trains = any(p.requires_grad for p in parameters_now(module))
        if not trains:
            self._drops_alone(module)
        if trains and torch.is_autocast_enabled(device.type):
            self.half |= torch.get_autocast_dtype(device.type) == torch.float16
        if not self.random:  # Dropout draws the numbers of its device.
            cuda = device.type == "cuda"
            state = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()
            self.random = hashlib.sha256(state.numpy().tobytes()).hexdigest()
        self._note_mode(module)

    def _note_mode(self, module: nn.Module) -> None:
        kept = self.modes[id(module)]
        if len(kept) >= MODES_KEPT:
            return
        parts = (part for part in module.modules() if part.training)
        acts = any(_drops(part) or _normalizes(part) for part in parts)
        if acts:
            self._acted.add(id(module))
        # A script may leave a model inside this one in evaluation mode.
        kept.append((self.steps, module.training and (acts or id(module) not in self._acted)))

    def _drops_alone(self, module: nn.Module) -> None:
        active = (n for n, part in module.named_modules() if part.training and _drops(part))
        if id(module) not in self._dropping and (name := next(active, None)) is not None:
            self._dropping[id(module)] = module, plain_name(name), user_line()

    def _dropped(self, found: Notes) -> None:
        """Notes models that never train, and drop."""
        held = self.stepping.held()
        for key, (module, name, place) in self._dropping.items():
            mine = list(module.parameters())
            frozen = key not in self.modes or (mine and not any(p.requires_grad for p in mine))
            if frozen and not any(id(p) in held for p in mine):
                found.found(
                    "evaluation",
                    f"{type(module).__name__} at {place}",
                    f"it is not trained, and its dropout {name} is in training mode: its "
                    "results are random",
                    "call eval() on it, also after layers are added",
                    sure=False,
                )

    def _copy(self, module: nn.Module) -> None:
        """Notes a copy of the trained model whose weights follow it, but whose statistics do not."""
        kept = self._copies[id(module)]
        collects = any(each.is_floating_point() for each in module.buffers())
        lazy = any(map(nn.parameter.is_lazy, parameters_now(module)))
        if module.training or not collects or lazy or len(kept) >= EVALUATIONS:
            return
        weights, buffers = _state(module)
        kept.append((weights, buffers))
        if len(kept) < 2 or not _moved(kept[-2][0], weights) or _moved(kept[-2][1], buffers):
            return
        for key in self.modes:
            its_weights, its_buffers = _state(self.roots[key])
            alike = all(
                {name: each.shape for name, each in mine.items()}
                == {name: each.shape for name, each in its.items()}
                for mine, its in ((weights, its_weights), (buffers, its_buffers))
            )
            if alike and (moved := _moved(buffers, its_buffers)):
                self.found.found(
                    "evaluation",
                    some(moved),
                    f"a copy of {type(self.roots[key]).__name__} is evaluated whose weights follow the "
                    "training, but whose running statistics stay as they were",
                    "copy the buffers too, or compute them again before the evaluation (update_bn)",
                    sure=False,
                )

    def in_model(self) -> bool:
        """Whether a module with parameters is running; those of torch's losses have none."""
        return any(next(parameters_now(m), None) is not None for m in self.forwards)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self.forwards or self.listening is not None:
            return
        if self.forwards[-1] is module:
            self.forwards.pop()
        if self.backward_depth:
            self._recomputed(module, output)
        elif self.recomputes and self.steps < FOLLOWED_STEPS:
            # A handwritten checkpoint runs its first pass without gradients.
            if torch.is_grad_enabled():
                results = tensors(output)
            else:
                results = [output] if isinstance(output, Tensor) else []
            self.outputs.setdefault(id(module), []).extend(sketch(each) for each in results)

    def _share(self, original: Any, made: Any) -> Any:
        if made.shuffle and len(self.shares) < MODES_KEPT:
            self.shares.append((made.rank, made.seed, made.epoch))
            self._epochs[id(made)].append(made.epoch)
        return original(made)

    def _orders(self, found: Notes) -> None:
        """Notes shuffled data that has the same order in every epoch."""
        for epochs in self._epochs.values():
            if len(epochs) > 2 and len({*epochs}) == 1:
                found.found(
                    "ranks",
                    "DistributedSampler",
                    f"{len(epochs)} passes over the data have the same order: its epoch is always "
                    f"{epochs[0]}",
                    "call sampler.set_epoch(epoch) before each epoch",
                    sure=False,
                )

    def _recomputed(self, module: nn.Module, output: Any) -> None:
        """Compares the result of a module inside a backward pass with its earlier results."""
        self.recomputes = True
        before = self.outputs.get(id(module))
        if not before:
            return
        for each in tensors(output):
            new = sketch(each)
            size = max(norm(new), 1e-30)
            gap = min((distance(new, old) / size for old in before), default=0.0)
            allowed = 64 * torch.finfo(each.dtype).eps
            self.found.holds("recomputed", "modules that run again in the backward pass")
            if gap > allowed:
                self.found.found(
                    "recomputed",
                    self.name_of(module),
                    "recomputed in the backward pass, its result differs from that of the "
                    "forward pass, so its gradient belongs to another function: dropout drops "
                    "different elements, or a mode or a format changed",
                    "let the recomputation restore the random state (preserve_rng_state=True) "
                    "and the autocast of the forward pass",
                    gap,
                    allowed,
                )

    def evaluating(self, sure: bool = True, target: Any = None) -> None:
        """Called for a loss without gradients: all modules that were just called must be in
        evaluation mode, unless it is the loss of the step's own batch, computed for a log."""
        for key, step in self._evaluated.items():
            module = self.roots[key]
            if step != self.steps or key not in self.modes:
                continue
            self.found.holds("evaluation", "modes of the model wherever a loss is computed")
            if (active := _active(module)) and module.training:
                finding = {
                    "relation": "evaluation",
                    "where": f"{self.name_of(module)} at {user_line()}",
                    "cause": f"the loss is computed without gradients while {active} is in training "
                    "mode: it is not the validation loss of this model",
                    "remedy": "call model.eval() before the evaluation, and model.train() after it",
                    "sure": sure,
                }
                self._settle()
                wanted = target.detach() if isinstance(target, Tensor) else None
                self._suspected = key, self._batches.get((key, False), []), wanted, finding
                if self._trains_on_it():  # after the step
                    self._suspected = None

    def _trains_on_it(self) -> bool:
        """Whether the last training call had the batch of the suspected evaluation."""
        if self._suspected is None:
            return False
        key, given, target, _ = self._suspected
        trained = self._batches.get((key, True), [])
        if given and trained:
            return _alike(given, trained)
        # The batch came by keyword: its targets must tell.
        if target is None or target.numel() < 2 or bool((target == target.flatten()[0]).all()):
            return False
        return any(_alike([target], [each]) for each in self.losses.targets)

    def _settle(self) -> None:
        if self._suspected is not None and not self._trains_on_it():
            self.found.found(**self._suspected[-1])
        self._suspected = None

    def active(self) -> str:
        """The first part of the models in training mode that behaves differently in training."""
        training = (module for module in self.roots.values() if module.training)
        return next(filter(None, map(_active, training)), "")

    def boundary(self) -> None:
        self._settle()
        self.terms.boundary()
        self.losses.boundary()
        if not self.steps and not self.first:  # no optimizer steps
            self.first = {id(p): sketch(p) for _, p in self.named()}
        self.steps += 1

    def notes(self) -> dict[str, Any]:
        self._settle()
        found = Notes.together([self.found])
        if self.steps:
            self._trained(found)
            self._modes(found)
            self._orders(found)
            self._dropped(found)
            self.stepping.decayed(found)
            self.stepping.saved(found)
            self.terms.judge(found)
            self.losses.validations(found)
            self.losses.single(found)
            self.losses.unused(found)
        return {
            "notes": asdict(found),
            "rows": [[(r.kind, r.place, r.count, r.share) for r in s] for s in self.losses.history],
            "random": self.random,
            "shares": self.shares,
            "sharded": [n for n, p in self.boundaries.parameters() if _is_shard(p)],
            "recomputes": self.recomputes,
            "dropout": any(_drops(part) for m in self.roots.values() for part in m.modules()),
            "steps": self.steps,
        }

    def _trained(self, found: Notes) -> None:
        held = self.stepping.held()
        stepped = parameters_of(each.optimizer for each in self.stepping.stepped.values())
        if not stepped:
            own = [p for _, p in self.trainable() if p.grad is not None]
            still = all(
                id(p) in self.first and distance(sketch(p), self.first[id(p)]) == 0 for p in own
            )
            if own and self.steps > 1 and still:
                found.found(
                    "trained",
                    "the optimizer",
                    f"it has not stepped once after {self.steps} backward passes, and the weights still "
                    "have their first values",
                    "call its step() after each backward pass",
                )
            for relation in ("trained", "update", "zero"):
                found.cannot(relation, "no optimizer of torch steps")
            return
        found.holds("trained", f"gradients and weights of {self.steps} steps")
        for key, calls in self.modes.items():
            module = self.roots[key]
            if not any(training for _, training in calls):
                continue
            self._left_out(module, held, found)
            if any(id(p) in stepped for p in module.parameters()):
                self._tied(module, found)
        self._parts(held, found)
        known = held | {id(p) for _, p in self.named()}
        loose = [
            leaf
            for leaf, before in self.stepping.loose.values()
            if id(leaf) not in known and distance(sketch(leaf), before) == 0
        ]
        if loose:
            found.found("trained", some([*map(_owned, loose)]), *LOST, sure=False)

    def _left_out(self, module: nn.Module, held: set[int], found: Notes) -> None:
        """Notes tensors with a gradient that no optimizer holds. Where these are most of a model, a script gives
        the others to the optimizer on purpose, such as a new head."""
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        lost = {
            name: parameter
            for name, parameter in trainable
            if id(parameter) not in held
            and self.gradients[id(parameter)]
            and id(parameter) in self.first
            and distance(sketch(parameter), self.first[id(parameter)]) == 0
        }
        whole_model = not any(id(p) in held for p in module.parameters())
        if whole_model and 0 < len(lost) < sum(self.gradients[id(p)] > 0 for _, p in trainable):
            found.found(
                "trained",
                self.name_of(module),
                "it gets gradients but is in no optimizer, and the script itself changes its weights, as those "
                "of an averaged copy: gradients should not reach it",
                "call it in torch.no_grad(), or detach its results",
                sure=False,
            )
            return
        kept = sum(p.numel() for n, p in trainable if n not in lost)
        if sum(p.numel() for p in lost.values()) < kept:
            for name in lost:
                found.found("trained", plain_name(name), *LOST)
            return
        # The outermost modules that are left out as a whole, and other tensors.
        parts: list[str] = []
        names = {n for n, _ in trainable}
        whole = [
            f"{name}."
            for name, _ in module.named_modules()
            if name and (own := {n for n in names if n.startswith(f"{name}.")}) and own <= {*lost}
        ]
        for name in [*whole, *lost]:
            if not any(name.startswith(part) for part in parts if part.endswith(".")):
                parts.append(name)
        if parts:
            plain = [plain_name(name.removesuffix(".")) for name in parts]
            found.found(
                "trained",
                self.name_of(module) if whole_model else some(plain),
                f"most of the model ({len(lost)} of {len(trainable)} tensors) gets gradients but is in no "
                "optimizer: it is never updated, and its gradients only cost time",
                "set requires_grad to False if it is to stay as it is, or give it to the optimizer",
                sure=False,
            )

    def _parts(self, held: set[int], found: Notes) -> None:
        """Notes modules that are only half frozen, and those that no optimizer can know."""
        if names := [self.name_of(part) for part, frozen in self._frozen.values() if frozen]:
            found.found(
                "trained",
                some(names),
                "with frozen weights, but in training mode: it normalizes with the batch, and its running "
                "statistics change",
                "call eval() on the frozen part after model.train()",
                sure=False,
            )
        for part in itertools.chain(*(modules for _, modules in self._unknown.values())):
            own = [p for p in part._parameters.values() if p is not None and id(p) not in held]
            if any(p.grad is not None and bool((p.grad != 0).any()) for p in own):
                found.found(
                    "trained",
                    type(part).__name__,
                    "it runs inside a model that has not registered it: its weights get a gradient, but "
                    "are in no optimizer",
                    "keep layers in nn.ModuleList or nn.ModuleDict instead of a list",
                    sure=False,
                )

    def _tied(self, module: nn.Module, found: Notes) -> None:
        """Notes a model whose configuration ties embedding and head, but which has two tensors."""
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
                    "trained",
                    self.parameter_name(two),
                    "the configuration ties it to the embedding, but they are two tensors",
                    "call tie_weights() after the model is made, moved or loaded",
                )

    def _modes(self, found: Notes) -> None:
        """Notes training that continues in evaluation mode after an evaluation."""
        for key, calls in self.modes.items():
            module = self.roots[key]
            steps = {step for step, _ in calls}
            if len(steps) < 3:
                continue
            if not any(training for _, training in calls):
                self._never_in_training(module, found)
                continue
            last_training = max(step for step, training in calls if training)
            later = {step for step, training in calls if step > last_training and not training}
            only = len(later) > 1 and later == {step for step in steps if step > last_training}
            if only and (active := _active(module)):
                found.found(
                    "evaluation",
                    f"{self.name_of(module)} from step {min(later) + 1} on",
                    f"training continues in evaluation mode: {active} no longer has an effect",
                    "call model.train() after each evaluation",
                    sure=not module.training,  # Parts may be frozen on purpose.
                )

    def _never_in_training(self, module: nn.Module, found: Notes) -> None:
        stepped = parameters_of(each.optimizer for each in self.stepping.stepped.values())
        mine = [p for p in module.parameters() if id(p) in stepped and self.gradients[id(p)] > 2]
        # A script may call parts of the model in training, and the whole in evaluation.
        train = {
            id(part)
            for key, calls in self.modes.items()
            if any(training for _, training in calls)
            for part in self.roots[key].modules()
        }
        if mine and (active := _active(module, train)):
            found.found(
                "evaluation",
                self.name_of(module),
                f"its weights are trained, but it is in evaluation mode in each step: {active} does not "
                "act as in training",
                "call model.train() before the training; loading a model may have called eval()",
                sure=False,
            )

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters of the models that require gradients and that an optimizer holds."""
        held = self.stepping.held()
        return [(n, p) for n, p in self.named() if p.requires_grad and id(p) in held]

    # -- names ---------------------------------------------------------------------------------

    def named(self) -> list[tuple[str, nn.Parameter]]:
        return list(members((self.roots[key] for key in self.modes), "parameters"))

    def parameter_name(self, parameter: Tensor) -> str:
        return next((n for n, p in self.named() if p is parameter), "a tensor")

    def name_of(self, module: nn.Module) -> str:
        """The name of a module in its model, with its class."""
        for root in self.roots.values():
            for name, part in root.named_modules():
                if part is module and name:
                    return f"{plain_name(name)} ({type(module).__name__})"
        return type(module).__name__


def _owned(parameter: nn.Parameter) -> str:
    """The name of a parameter in some module, with its class."""
    for owner in gc.get_objects():
        if issubclass(type(owner), nn.Module):
            for name, own in owner._parameters.items():
                if own is parameter:
                    return f"{name} of {type(owner).__name__}"
    return f"a parameter of shape {tuple(parameter.shape)}"


def _state(module: nn.Module) -> State:
    """Sketches of a model's weights and of its buffers."""
    weights, buffers = (
        {n: sketch(t) for n, t in members([module], kind) if t.is_floating_point()}
        for kind in ("parameters", "buffers")
    )
    return weights, buffers


def _moved(before: dict[str, Sketch], now: dict[str, Sketch]) -> list[str]:
    """Names of the tensors whose values differ."""
    return [n for n, each in now.items() if n in before and distance(before[n], each) > 0]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether tensors have the same values. Sparse, nested and sharded ones are not compared."""
    plain = [*one, *other]
    if any(t.layout != torch.strided or hasattr(t, "to_local") or t.is_meta for t in plain):
        return False
    return len(one) == len(other) and all(
        a.shape == b.shape and a.device == b.device and bool((a == b).all())
        for a, b in zip(one, other, strict=True)
    )


def _is_shard(parameter: Any) -> bool:
    """Whether ranks have different parts of a parameter."""
    return any(each.is_shard() for each in getattr(parameter, "placements", ()))


def _drops(part: nn.Module) -> bool:
    named = any(each in type(part).__name__ for each in ("Dropout", "DropPath", "StochasticDepth"))
    return named and bool(getattr(part, "p", None) or getattr(part, "drop_prob", None))


def _active(module: nn.Module, known: Container[int] = ()) -> str:
    """The first part of a module that behaves differently in training, without those whose ids are
    ``known``; empty if there is none."""
    for name, part in module.named_modules():
        if id(part) in known:
            continue
        if _drops(part) or _normalizes(part):
            return f"{plain_name(name)} ({type(part).__name__})".lstrip()
    return ""


def _normalizes(part: nn.Module) -> bool:
    """Whether a module is batch normalization, also one of the script's own with statistics of its own, as in
    flows. A frozen one acts the same in both modes."""
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return True
    names = [each.__name__ for each in type(part).__mro__]
    if any("Frozen" in each for each in names):
        return False
    named = any("BatchNorm" in each for each in names)
    return named and any("running" in name for name in part._buffers)
