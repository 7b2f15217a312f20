"""Watches losses: how much each row counts in the gradient, and whether the arguments of a loss are
those that its formula expects."""

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from transformer_core.audit.relations import Notes, called_by_script, user_line, user_site
from transformer_core.tune.boundaries import replacing, transformed
from transformer_core.tune.nested import mapped

if TYPE_CHECKING:
    from transformer_core.audit.watcher import Watcher

FOLLOWED_STEPS = 8  # optimizer steps that are watched closely
SAME = 1e-5  # Smaller relative differences between the weights of rows are rounding.
MEAN_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
TARGETS_KEPT = 4
MOST_NODES = 2000  # of a graph
PAIRED_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")  # they broadcast
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")


@dataclass
class Rows:
    """One call of a loss: how much each of its rows counts in the gradient."""

    place: str
    kind: str
    count: int  # rows that count
    classes: int = 1
    constant: float | None = None  # the number that all of its targets are
    share: float = 0.0  # weight of a row in the differentiated loss; the mean if rows differ
    even: bool = True  # whether all rows that count have the same weight
    all: int = 0  # rows with those that do not count; 0 if unknown
    seen: bool = False
    own: bool = False  # whether it is a loss that the script computes outside a model
    reached: bool = False  # whether a backward pass uses the loss
    inner: tuple[int, ...] = ()  # sizes of its predictions without the first axis
    active: str = ""  # after the first steps: a part of a model that acts as in training then
    site: int = 0  # the expressions that call it: the same in each pass of a loop

    def weigh(self, weights: Tensor) -> None:
        """Set count, share and evenness from the weights of the rows; a row of weight 0 does not count."""
        weights = weights[weights != 0]
        self.count = len(weights)
        if len(weights):
            self.share = float(weights.mean())
            self.even = float(weights.max() - weights.min()) <= SAME * abs(self.share)


class Losses:
    """Watches torch's losses and ``log_softmax`` in one process."""

    def __init__(self, watch: "Watcher") -> None:
        self.watch, self.notes = watch, watch.found
        self.rows: list[Rows] = []  # losses of the current step
        self.history: list[list[Rows]] = []  # of the first steps, for the comparison of ranks
        self.judged = 0  # losses of this step whose backward passes have begun
        self.lost = 0  # backward passes of this step whose gradients were set to zero
        self._means: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(dict)
        """Numbers of targets of the means that were computed without gradients, by line, by pass over a
        loader and by call of a model: batches of one evaluation and of another may differ, and so may the
        levels of a detector."""
        self._passes = 0  # passes over loaders that have begun
        self._usual: dict[str, int] = {}
        """Parts of a step whose rows have the right weight, by line."""
        self._divergences: list[tuple[Tensor, Tensor]] = []
        """Divergences of this step that are not yet added up, with their targets."""
        self._lengths: dict[str, set[tuple[int, int]]] = defaultdict(set)
        """Steps and lengths of the axes over which softmax is taken with gradients, by line."""
        self.ignored: set[int] = set()  # values of targets that losses ignore
        self.targets: list[Tensor] = []  # of the last losses with gradients
        self._steps: dict[str, set[int]] = defaultdict(set)
        """Steps in which the script computes a loss with gradients, by line."""
        self._used: set[str] = set()  # lines of losses that some backward pass uses
        self._skips: set[str] = set()  # lines some of whose losses in the first steps none uses

    def install(self) -> None:
        for name in MEAN_LOSSES:
            replacing(nn.functional, name)(functools.partial(self._loss, name))
        replacing(nn.functional, "kl_div")(self._divergence)
        replacing(nn.functional, "logsigmoid")(self._preference)
        for name in ("__sub__", "sub", "__mul__", "mul"):
            replacing(Tensor, name)(functools.partial(self._broadcast, "mul" in name))
        for owner in (torch, Tensor):  # torch.nn.functional calls Tensor's
            replacing(owner, "mean")(self._mean)
            replacing(owner, "log_softmax")(self._log_softmax)
            replacing(owner, "softmax")(self._softmax)
        for name in DROPOUTS:
            replacing(nn.functional, name)(self._dropout)

        @replacing(DataLoader, "__iter__")
        def begin(original: Any, loader: Any) -> Any:
            self._passes += 1
            self.watch.loaders.setdefault(type(loader.dataset).__name__, loader)
            return original(loader)

    def boundary(self) -> None:
        if self.watch.steps < FOLLOWED_STEPS:
            self._judge()
            self.history.append([r for r in self.rows if r.seen])
            for rows in (each for each in self.rows if each.own):
                place = f"{rows.kind} at {rows.place}"
                self._steps[place].add(self.watch.steps)
                if rows.reached:
                    self._used.add(place)
        self._wasted()
        self.rows, self.judged, self.lost = [], 0, 0
        self._divergences = []

    def _wasted(self) -> None:
        """Notes losses of this step that no backward pass uses, of a line whose losses were all used in the
        first steps: an evaluation with gradients."""
        places = defaultdict(list)
        for rows in (each for each in self.rows if each.own):
            places[f"{rows.kind} at {rows.place}"].append(rows)
        for place, every in places.items():
            lost = [rows for rows in every if not rows.reached]
            if lost and self.watch.steps < FOLLOWED_STEPS:
                self._skips.add(place)
            elif 1 < len(lost) < len(every) and lost[0].active and place not in self._skips:
                self.notes.found(
                    "evaluation",
                    place,
                    f"losses are computed with gradients while {lost[0].active} is in training mode, and no "
                    "backward pass uses them",
                    "if this is an evaluation, call model.eval() before it and model.train() after it, and "
                    "compute it under torch.no_grad()",
                    sure=False,
                )
                return

    def unused(self, found: Notes) -> None:
        """Notes losses that are computed with gradients in each step, and never used."""
        for place, steps in self._steps.items():
            if place not in self._used and len(steps) > 2 and len(steps) == max(steps) + 1:
                found.found(
                    "loss",
                    place,
                    "it is computed with gradients in each step, but no backward pass uses it",
                    "add it to the loss that is differentiated; if it is only logged, compute it under "
                    "torch.no_grad()",
                    sure=False,
                )

    def validations(self, found: Notes) -> None:
        """Means over different numbers of targets, which a script may average again."""
        for (place, _), calls in self._means.items():
            if len({*map(tuple, calls.values())}) > 1:
                counts = [*itertools.chain(*calls.values())]
                found.found(
                    "evaluation",
                    place,
                    f"losses without gradients are means over {min(counts)} to {max(counts)} "
                    "targets: if these means are averaged, targets of short batches count more",
                    "add up the losses of all targets, and divide by their number",
                    sure=False,
                )

    def _loss(
        self, name: str, original: Any, input: Any, target: Any, *args: Any, **kwargs: Any
    ) -> Any:
        found = original(input, target, *args, **kwargs)
        if torch.compiler.is_compiling() or transformed() or not isinstance(input, Tensor):
            return found
        if self.watch.listening is not None:
            self.watch.listening.append((name, input, target))
            return found
        if self.watch.outside is not None and not self.watch.in_model():
            self.watch.outside.append(mapped((name, input, target), lambda t: t.detach().clone()))
        self._expectation(name, input)
        if name in PAIRED_LOSSES and isinstance(target, Tensor):
            self._pairs(input, target)
            self._moving(name, input, target)
        mean = kwargs.get("reduction", "mean") == "mean"
        counted = self._counted(name, input, target, args, kwargs)
        if mean and not bool(counted.any()):
            self.notes.found(
                "loss",
                f"{name} at {user_line()}",
                "it is a mean over no targets, which is not a number (NaN)",
                "look for an empty data set or batch, and for targets that are all left out",
                sure=False,
            )
        if not torch.is_grad_enabled():
            if not input.requires_grad:  # or it only measures predictions of the training
                self.watch.evaluating(target=target)
            if mean:
                place = f"{name} at {user_line()}", self._passes
                means = self._means[place].setdefault(self.watch.called, [])
                means.append(int(counted.sum()))
        elif isinstance(found, Tensor) and found.requires_grad and not self.watch.backward_depth:
            if isinstance(target, Tensor):
                self.targets = [*self.targets[1 - TARGETS_KEPT :], target.detach()]
            self._weigh(found, name, counted, mean)
            self.rows[-1].inner, self.rows[-1].site = tuple(input.shape[1:]), user_site()
            if name in ("cross_entropy", "nll_loss") and input.dim() > 1:
                self.rows[-1].classes = input.shape[1]
            self.rows[-1].constant = _constant(target)
        return found

    def _moving(self, name: str, input: Tensor, target: Tensor) -> None:
        """Notes targets that the training changes together with the predictions."""
        if not torch.is_grad_enabled() or not input.requires_grad or not target.requires_grad:
            return
        # Two views of a sample that go the same way are two predictions (VICReg).
        if _way(input) != _way(target):
            self.notes.found(
                "loss",
                f"{name} at {user_line()}",
                "its targets require a gradient too: the training also moves the targets towards the "
                "predictions",
                "compute the targets under torch.no_grad(), or detach them",
                sure=False,  # a script may want both to move
            )

    def _preference(self, original: Any, input: Any) -> Any:
        """Notes whether a backward pass uses a loss of differences."""
        found = original(input)
        if self.watch.quiet or not isinstance(found, Tensor) or not found.requires_grad:
            return found
        rows = Rows(user_line(), "logsigmoid", 0, own=not self.watch.in_model())
        self.rows.append(rows)
        found.register_hook(lambda _: setattr(rows, "reached", True))
        return found

    def _broadcast(
        self, product: bool, original: Any, one: Any, other: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Notes n numbers minus or times n others in a column, which are n times n numbers."""
        found = original(one, other, *args, **kwargs)
        if not isinstance(other, Tensor) or not isinstance(found, Tensor) or found.dim() != 2:
            return found
        row, column = (one, other) if one.dim() == 1 else (other, one)
        count = len(found)
        if row.shape != (count,) or column.shape != (count, 1) or count < 2:
            return found
        if not self.watch.closely or not found.is_floating_point() or self.watch.in_model():
            return found  # In a model, these are distances of all pairs of places.
        if product and not found.requires_grad:
            return found  # such as the degrees of a graph, which normalize all its edges
        # A script that makes a column of a row wants all pairs.
        base = column._base
        made = base is not None and base.dim() == 1
        if not made and called_by_script():
            self.notes.found(
                "loss",
                user_line(),
                f"numbers {tuple(row.shape)} and {tuple(column.shape)} are broadcast: the result has "
                f"all {found.numel()} pairs",
                "give both the same shape, with squeeze(1) or view_as()",
                sure=False,
            )
        return found

    def _pairs(self, input: Tensor, target: Tensor) -> None:
        """Notes predictions and targets of which each meets all of the others."""
        shape = torch.broadcast_shapes(input.shape, target.shape)
        # With as many axes, a script may have put in the axes of length 1 on purpose.
        if input.dim() != target.dim() and shape.numel() > max(input.numel(), target.numel()):
            self.notes.found(
                "loss",
                user_line(),
                f"predictions {tuple(input.shape)} and targets {tuple(target.shape)} are broadcast: "
                f"the loss is that of all {shape.numel()} pairs",
                "give both the same shape: target.view_as(prediction)",
            )
        column, square = sorted((tuple(input.shape), tuple(target.shape)))
        if (
            len(column) == len(square) == 2
            and column == (len(input), 1) != square == column[:1] * 2
        ):
            self.notes.found(
                "loss",
                user_line(),
                f"predictions {tuple(input.shape)} and targets {tuple(target.shape)} are broadcast: an "
                "earlier formula may have paired each number of a row with each of a column",
                "look for a formula with a column (n, 1) and a row (n), and give both the same shape",
                sure=False,  # a sample may have as many targets as a batch has samples
            )

    def _dropout(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes dropout that is active in a module in evaluation mode."""
        found = original(input, *args, **kwargs)
        if self.watch.quiet or not self.watch.forwards:
            return found
        rate = kwargs.get("p", args[0] if args else 0.5)
        active = kwargs.get("training", args[1] if len(args) > 1 else True)
        if rate and active and not self.watch.forwards[-1].training:
            self.notes.found(
                "evaluation",
                user_line(),
                "dropout is active in a module in evaluation mode",
                "pass training=self.training to it",
                sure=False,  # some draw several predictions on purpose
            )
        return found

    def _counted(self, name: str, input: Tensor, target: Any, args: Any, kwargs: Any) -> Tensor:
        """Whether each row of a loss counts: bool, [rows]."""
        if name in ("cross_entropy", "nll_loss") and isinstance(target, Tensor):
            if target.is_floating_point():
                return torch.ones(target.shape[0], dtype=torch.bool, device="cpu")
            ignored = kwargs.get("ignore_index", args[2] if len(args) > 2 else -100)
            self.ignored.add(ignored)
            counted = target != ignored
            if input.dim() > 1 and input.shape[1] == 2 and ignored in (0, 1) and not counted.all():
                self.notes.found(
                    "loss",
                    f"{name} at {user_line()}",
                    f"it ignores class {ignored}, one of its two: all targets that count are of class "
                    f"{1 - ignored}, so it only teaches the model to always predict that class",
                    "use a loss without ignore_index for these targets",
                )
            return counted
        return torch.ones(input.shape, dtype=torch.bool, device="cpu")

    def _weigh(self, found: Tensor, kind: str, counted: Tensor, mean: bool) -> None:
        count = int(counted.sum())
        rows = Rows(user_line(), kind, count, own=not self.watch.in_model())
        if self.watch.steps >= FOLLOWED_STEPS:
            rows.active = self.watch.active()
        self.rows.append(rows)

        def weigh(gradient: Tensor) -> None:
            rows.reached = True
            gradient = gradient.detach().double()
            if gradient.numel() == 1:
                rows.share = float(gradient) / (count if mean and count else 1)
            elif gradient.numel() == counted.numel():
                rows.weigh(gradient.reshape(-1)[counted.reshape(-1).bool()])
                rows.all = gradient.numel()
            else:
                return
            rows.seen = True

        found.register_hook(weigh)

    def _divergence(self, original: Any, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a divergence of numbers that are no log-probabilities, and one averaged over classes."""
        found = original(input, target, *args, **kwargs)
        if not self.watch.closely or not found.requires_grad or not found.numel():
            return found
        wanted = target.detach().exp() if kwargs.get("log_target") else target.detach()
        self.notes.holds("loss", "the arguments of the script's loss functions")
        if bool(((input.detach() > 1e-3) & (wanted > 0)).any()):
            self.notes.found(
                "loss",
                f"kl_div at {user_line()}",
                "its first argument has numbers above 0, so they are not the logarithms of probabilities",
                "pass log_softmax of the logits first, and the other probabilities second",
            )
        reduction = kwargs.get("reduction", args[2] if len(args) > 2 else "mean")
        old = any(
            a is not None for a in (*args[:2], kwargs.get("size_average"), kwargs.get("reduce"))
        )
        if reduction == "mean" and not old:  # Old arguments replace it.
            self._averaged(found, wanted, None)
        elif reduction == "none":
            self._divergences.append((found, wanted))
        return found

    def _mean(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(input, *args, **kwargs)
        if torch.compiler.is_compiling() or not isinstance(found, Tensor):
            return found  # torch.fx traces with objects that have no values.
        axis = kwargs.get("dim", args[0] if args else None)
        for divergence, wanted in self._divergences:
            if divergence is input:
                self._averaged(found, wanted, axis)
        if self.watch.closely and isinstance(axis, int):
            self._constant_mean(input, found, axis)
        return found

    def _constant_mean(self, input: Tensor, found: Tensor, axis: int) -> None:
        """Notes the mean of probabilities over the axis along which they sum to 1."""
        length = input.shape[axis] if input.dim() > 1 else 1
        if length < 2 or found.numel() < 2 or not found.requires_grad:
            return
        if bool(((found.detach() * length - 1).abs() < 1e-5).all()) and bool((input >= 0).all()):
            self.notes.found(
                "trained",
                f"mean at {user_line()}",
                f"it is taken over the axis along which probabilities sum to 1: each result is 1 / {length}, "
                "and no gradient flows through it",
                "take it over the axis of the samples or tokens",
                sure=False,
            )

    def _averaged(self, found: Tensor, wanted: Tensor, over: Any) -> None:
        """Notes the mean of a divergence over axes that include that of the classes, along which the
        probabilities ``wanted`` sum to 1."""
        axes = range(wanted.dim()) if over is None else [over] if isinstance(over, int) else over
        classes = [
            wanted.shape[axis]
            for axis in axes
            if wanted.shape[axis] > 1 and bool(((wanted.sum(axis) - 1).abs() < 1e-2).all())
        ]
        if not classes:
            return
        place = f"kl_div at {user_line()}"

        def judge(gradient: Tensor) -> None:
            # A script may multiply the mean by the number of classes.
            if 0 < float(gradient.sum()) / self.watch.stepping.scale < classes[0]:
                self.notes.found(
                    "loss",
                    place,
                    f"the divergence is averaged over the {classes[0]} classes: it is that many times "
                    "smaller than the divergence of the distributions",
                    'use reduction="batchmean", or add up over the classes',
                    sure=False,
                )

        found.register_hook(judge)

    def _softmax(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(input, *args, **kwargs)
        self._note_axis(found, args, kwargs)
        return found

    def _note_axis(self, found: Tensor, args: Any, kwargs: Any) -> None:
        axis = kwargs.get("dim", args[0] if args else None)
        if self.watch.closely and found.requires_grad and isinstance(axis, int):
            length = found.shape[axis] if found.dim() else 1
            self._lengths[user_line()].add((self.watch.steps, length))

    def single(self, found: Notes) -> None:
        """Notes a softmax that is always taken over an axis of length 1."""
        for place, calls in self._lengths.items():
            if len(calls) > 2 and {length for _, length in calls} == {1}:
                found.found(
                    "trained",
                    f"softmax at {place}",
                    "it is taken over an axis of length 1: each result is 1 (its logarithm 0), and no "
                    "gradient flows to the scores",
                    "take it over the axis whose elements compete",
                    sure=False,
                )

    def _log_softmax(self, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes the weights of rows if the script picks log-probabilities itself."""
        found = original(input, *args, **kwargs)
        if self.watch.quiet:
            return found
        self._note_axis(found, args, kwargs)
        if not torch.is_grad_enabled() and not self.watch.in_model():
            self.watch.evaluating(sure=False)  # or the targets of a distillation
        if not torch.is_grad_enabled() or not found.requires_grad or found.dim() < 2:
            return found
        if "SoftmaxBackward" in type(input.grad_fn).__name__:
            self._expectation("cross_entropy", input.flatten(0, -2))
        rows = Rows(user_line(), "log_softmax", 0, input.shape[-1])
        self.rows.append(rows)
        axis: Any = kwargs.get("dim", args[0] if args else None)

        def weigh(gradient: Tensor) -> None:
            rows.reached = True
            followed = isinstance(axis, int) and self.watch.steps < FOLLOWED_STEPS
            if followed and (picked := _picked(gradient, axis)) is not None:
                self.notes.found(
                    "loss",
                    f"log_softmax at {rows.place}",
                    f"it is taken along axis {axis % gradient.dim()}, but the loss picks one number each along "
                    f"axis {picked}, whose probabilities do not sum to 1",
                    "take it along the axis of the classes",
                    sure=False,
                )
            rows.weigh(-gradient.detach().double().sum(-1).reshape(-1))
            rows.seen = rows.seen or rows.count > 0

        found.register_hook(weigh)
        return found

    def _expectation(self, name: str, input: Tensor) -> None:
        """Notes a loss that gets probabilities instead of logits, or the reverse."""
        if self.watch.steps >= FOLLOWED_STEPS or input.numel() == 0:
            return
        self.notes.holds("loss", "the arguments of the script's loss functions")
        rows = input.detach()
        classes = input.dim() > 1 and input.shape[1] > 1
        cause = remedy = ""
        if name == "cross_entropy" and classes:
            if float(rows.min()) >= 0 and float((rows.float().sum(1) - 1).abs().max()) < 1e-3:
                cause = (
                    "its rows are probabilities that sum to 1, so softmax is taken twice and the "
                    "gradient is far too small"
                )
                remedy = (
                    "pass the logits to cross_entropy, or the logarithm of the probabilities to "
                    "nll_loss"
                )
        elif name == "nll_loss" and classes:
            logs = float(rows.max()) <= 1e-3
            if not logs or float((rows.float().exp().sum(1) - 1).abs().max()) > 1e-2:
                cause = "its rows are not the logarithms of probabilities"
                remedy = "use log_softmax before nll_loss, or cross_entropy on the logits"
        elif name.endswith("with_logits") and "Sigmoid" in type(input.grad_fn).__name__:
            cause = "the sigmoid is taken twice: before the loss and in it"
            remedy = "pass the logits to it, or use binary_cross_entropy"
        if cause:
            self.notes.found("loss", user_line(), cause, remedy)

    def _judge(self) -> None:
        """Notes rows of one line whose weights differ within a step because the loss is a mean of
        means, and parts of a step whose sum or division is wrong."""
        # Losses over other classes in the same line are other tasks.
        # So are those with another constant for all targets: a discriminator's for real and made samples.
        # And two expressions of one line.
        places: dict[tuple[str, int, float | None, int], list[Rows]] = defaultdict(list)
        for rows in self.rows:
            if rows.seen and rows.count:
                key = f"{rows.kind} at {rows.place}", rows.classes, rows.constant, rows.site
                places[key].append(rows)
        # Backward passes since the last step of the optimizer that steps now.
        parts = len(self.watch.boundaries.losses) - self.lost
        if any(isinstance(each, torch.optim.LBFGS) for each in self.watch.boundaries.optimizers):
            return  # It computes the same batch several times in a step.
        for (place, *_), calls in places.items():
            number = len(calls)
            # Layers or scales, each with a mean of its own, are no parts of a batch.
            if number != parts and len({r.inner for r in calls}) > 1:
                continue
            total = sum(r.count * r.share for r in calls) / self.watch.stepping.scale
            if number == parts == 1:
                self._empty_rows(place, calls[0])
            if number < 2:
                continue
            self.notes.holds("parts", "weights of the rows of all parts of a step")
            # In one backward pass, they may also be levels of a detector, or samples that count alike.
            sure = parts > 1
            uneven(place, [(r.count, r.share) for r in calls], "parts", self.notes, sure)
            if number != parts or not all(r.even for r in calls):
                continue
            if abs(total - 1) < 1e-3:
                self._usual[place] = number
                continue
            usual = self._usual.get(place, number)
            if abs(total / number - 1) < 1e-3:
                cause = (
                    f"each of the {number} parts of a step counts as a whole batch: the "
                    "gradient is their sum instead of their mean"
                )
                remedy = f"divide the loss by {number}, or by the rows of the whole step"
            elif abs(total * number - 1) < 1e-3:
                cause = (
                    f"the loss of each of the {number} parts is divided by the parts twice: "
                    "the gradient is a fraction of their mean"
                )
                remedy = "divide by the rows of the whole step, or by the parts, not by both"
            elif number < usual and abs(total * usual / number - 1) < 1e-3:
                cause = (
                    f"a step has {number} parts, and divides the loss of each by {usual}, the parts "
                    "of the steps before it: its gradient is too small"
                )
                remedy = f"divide the losses of this step by {number}"
            else:
                continue
            # Some want a short step to count less.
            self.notes.found("parts", place, cause, remedy, total, 1.0, sure=number == usual)

    def _empty_rows(self, place: str, rows: Rows) -> None:
        """Notes a mean whose divisor counts rows of weight 0."""
        share = rows.share / self.watch.stepping.scale
        if rows.even and 0 < rows.count < rows.all and abs(share * rows.all - 1) < 1e-3:
            self.notes.found(
                "padding",
                place,
                f"the loss is a mean over {rows.all} rows, of which {rows.all - rows.count} have no "
                "weight: with more padding, the gradient of the other rows gets smaller",
                "divide the sum of the losses by the number of rows that count",
                share * rows.count,
                1.0,
                sure=False,
            )


def _picked(gradient: Tensor, axis: int) -> int | None:
    """The axis along which a loss picks one log-probability each, unless it is ``axis``, that of the softmax. All
    count the same: those of a chosen action's distribution do not."""
    picked = gradient != 0
    others = {*range(gradient.dim())} - {axis % gradient.dim()}
    if int(picked.sum(axis).max()) > 1 and len(gradient[picked].unique()) == 1:
        for other in others:
            if gradient.shape[other] > 1 and bool((picked.sum(other) == 1).all()):
                return other
    return None


def _way(tensor: Tensor) -> Counter[str]:
    """How often each operation is part of the way to a tensor; of a very long one, of its end."""
    return Counter(type(node).__name__ for node in way([tensor]))


def way(given: Sequence[Tensor]) -> set[Any]:
    """The operations on the way to tensors; of a very long one, those at its end."""
    waiting, seen = [each.grad_fn for each in given], set[Any]()
    for node in waiting:
        if node is None or node in seen or len(seen) >= MOST_NODES:
            continue
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
    return seen


def _constant(target: Any) -> float | None:
    """The number that all targets are; None if they differ, or one alone could be any."""
    if not isinstance(target, Tensor) or not target.is_floating_point() or target.numel() < 2:
        return None
    first = target.detach().reshape(-1)[0]
    return float(first) if bool((target == first).all()) else None


def uneven(
    place: str, calls: list[tuple[int, float]], relation: str, notes: Notes, sure: bool = True
) -> None:
    """Notes rows that count differently only because their calls have different numbers of rows.
    ``calls`` has (rows, weight of a row) of each call."""
    shares = [share for _, share in calls]
    sums = [count * share for count, share in calls]
    largest = max(abs(s) for s in shares)
    if not largest or max(shares) - min(shares) <= SAME * largest:
        return
    if max(sums) - min(sums) > SAME * max(abs(s) for s in sums):
        return
    low, high = min(count for count, _ in calls), max(count for count, _ in calls)
    who = "ranks" if relation == "ranks" else "parts"
    notes.found(
        relation,
        place,
        f"a mean of means: the {len(calls)} {who} of a step have {low} to {high} rows but count the "
        f"same, so a row of one counts {high / low:.2g} times as much as a row of another",
        "add up the losses of all rows, and divide by the number of rows of the whole step",
        max(shares) / min(shares) - 1 if min(shares) else None,
        SAME,
        sure,
    )
