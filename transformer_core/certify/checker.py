"""Recomputes the losses, gradients and updates of a training while it runs.

Every comparison starts from the run's own weights and gradients, not from those of another training.
So narrow bounds hold at every step, although rounding makes any two trainings drift apart.
"""

import math
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from schemas.config.data import PaddedRows
from schemas.config.measurement import Tolerance
from schemas.config.model import DecoderOnly, TorchTransformer, Transformer
from schemas.config.run_spec import LanguageModel, RunSpec
from schemas.results.certificates import (
    CheckedPoint,
    Checks,
    TensorDistance,
)
from transformer_core.certify.bounds import determined
from transformer_core.certify.evaluation import checked_decoding, checked_validation
from transformer_core.certify.floors import (
    NEAR_A_BOUND,
    NEGLIGIBLE,
    RATIO_SHARE,
    WIDEST,
    WIDEST_LOSS,
    allowed,
    of_loss,
)
from transformer_core.certify.number_formats import (
    ANY_SINGLE,
    EXACT,
    ROUNDINGS,
    SINGLE,
    Format,
    format_of,
    single_is_independent,
)
from transformer_core.certify.plain_models import (
    NONE_DROPPED,
    OwnModel,
    Pass,
    Plain,
    PlainDecoder,
    PlainModel,
    Tokens,
)
from transformer_core.certify.replay import Drops, OtherSentences, Replay
from transformer_core.certify.tensors import CanonicalTensors, MeanErrors, distance
from transformer_core.certify.tensors import norm as norm_of
from transformer_core.certify.updates import CheckedUpdates, kept_moments
from transformer_core.data.batching.feeding import Feed, GlobalBatch
from transformer_core.training import checkpoint
from transformer_core.training.assemble import Setup
from transformer_core.training.precision import build_precision

POINTS, POINTS_FOLLOWED, POINTS_OF_MEAN = 3, 2, 6
"""Number of steps whose gradients are compared: the first, the last, and evenly spaced ones in
between. The second number applies if resumed steps follow; the third one to formats with fewer than 32
bits, where rounding must cancel in the mean over steps."""
NEAR_SINGLE = 16.0
"""In 32 bits only sums round. A ReLU input within this many unit round-offs of 0, relative to the size
of all inputs, may fall on either side. Adding n products of random sign one by one gives an error of
sqrt(n / 6) unit round-offs of the sum, 4.6 for n = 128, and earlier layers add their own errors."""
NEAR_FEWER_BITS = 2.0
"""With fewer bits, a ReLU input may fall on either side within this many times the largest error that
the format causes in the inputs. The largest, because the errors of one token may be several times
those of the others."""
ROWS_ON_CPU = 2
"""Number of rows of a batch whose gradients a GPU and the CPU both compute in 64 bits."""
APART_IN_64_BITS = 1e-9
"""Largest difference between the two, relative to the whole gradient. Rounding causes some 1e-14."""
CLIP_EPSILON = 1e-6
"""Constant that torch adds to the norm before dividing by it."""

CEILINGS = Tolerance(kind="tolerance")

Tensors = Mapping[str, Tensor]


class Seen(NamedTuple):
    """A step of the run."""

    step: int
    before: Tensors
    """The weights that it started from."""
    gradients: Tensors
    """Before clipping."""
    tokens: Tokens
    drops: Drops
    loss: float
    norm: float


@dataclass(frozen=True)
class Floors:
    """Relative errors that rounding alone causes."""

    loss: float
    gradients: Mapping[str, tuple[float, float]]
    """For each tensor, its error and the part of it along the gradient."""
    norm: float
    """The error of the norm of the whole gradient."""

    def widened(self, other: "Floors") -> "Floors":
        """The larger of the two floors of every quantity."""
        both = {
            name: (max(error, other.gradients[name][0]), max(along, other.gradients[name][1]))
            for name, (error, along) in self.gradients.items()
        }
        return Floors(max(self.loss, other.loss), both, max(self.norm, other.norm))


class Checker:
    """Compares every step of a training with its expected outcome.

    Every rank must call it; the main rank does the work while the others wait at their next
    message.

    After resuming, it compares the steps ``resumed``, beginning with the batch after ``last`` (epoch
    and index); with a ``replay``, dropout is on. ``floors`` from the same initial weights save
    measuring them again. If a resumed training ``follows``, that one checks validation.
    """

    def __init__(
        self,
        setup: Setup,
        tensors: CanonicalTensors,
        folder: Path,
        resumed: range = range(0),
        last: tuple[int, int] | None = None,
        floors: Floors | None = None,
        replay: Replay | None = None,
        follows: bool = False,
    ) -> None:
        spec = setup.spec
        self.spec, self.setup, self.tensors, self.folder = spec, setup, tensors, folder
        self.resumed, self.replay, self.follows = resumed, replay, follows
        self.weights = tensors.weights()
        smoothing, vocabulary = spec.training.label_smoothing, tensors.vocabulary
        published = spec.training.loss.smooths_other_tokens_only
        self.exact = plain_function(spec, vocabulary, smoothing, published)
        self.unsmoothed = plain_function(spec, vocabulary, 0.0)
        self._compute_on(tensors.device)
        self.confirmed = self.exact.device.type == "cpu"
        """Whether the CPU has computed the same gradients of a few rows."""
        self.batches = _whole_batches(setup)
        if last is not None:
            # Counting from the first batch shows whether the training resumed at the right one.
            next(b for b in self.batches if (b.epoch, b.index) == last)
        self.form = format_of(spec)
        self.ceiling = CEILINGS.gradient if self.form is SINGLE else WIDEST
        if resumed:
            self.waiting = list(resumed)
        else:
            few = POINTS_FOLLOWED if follows else POINTS
            many = few if self.form is SINGLE else POINTS_OF_MEAN
            steps = spec.training.steps
            self.waiting = sorted({1 + round(i * (steps - 1) / (many - 1)) for i in range(many)})
        self.updates = CheckedUpdates(spec, self.weights, tensors.trained) if self.weights else None
        self.points: list[CheckedPoint] = []
        self.gradients: list[TensorDistance] = []
        self.errors = MeanErrors()
        self.floors = floors
        """Floors in 32 bits, measured once a deviation exceeds what any program shows."""
        self.lost: list[str] = []
        self.sums: tuple[dict[str, Tensor], ...] = ({}, {}, {})
        """Sums of the gradients of all steps: the run's, the exact ones, and those in its format."""
        self.still: dict[str, list[int]] = {}
        """By tensor, the steps at which its whole gradient was 0, although it should not be."""
        self.idle: set[str] = set()
        """The tensors whose gradient was rightly 0 at the first step, and 0 ever since."""
        self.compared = 0
        self.evaluating = 0
        """Largest number of modules that were in evaluation mode when this rank trained."""
        setup.module.register_forward_pre_hook(self._count_evaluating)
        self.used: dict[Tensor, Tensor] | None = None
        """The gradients of this rank that the optimizer used, if its step overwrites them."""
        if spec.training.optimizer.state.averages:
            setup.optimizer.register_step_pre_hook(self._keep_gradients)

    def _keep_gradients(self, optimizer: Optimizer, *_: Any) -> None:
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self.used = {p: p.grad.clone() for p in every if p.grad is not None}

    def _count_evaluating(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            # Parts of a user's model may evaluate on purpose.
            own = isinstance(self.exact, Plain)
            parts = self.setup.model.modules() if own else [self.setup.model]
            self.evaluating = max(self.evaluating, sum(not part.training for part in parts))

    def updated(self, step: int, target_tokens: int, loss_sum: Tensor, norm: Tensor) -> None:
        """Compares ``step``, which has just completed."""
        loss = float(self.setup.strategy.sum(loss_sum.detach().double())) / target_tokens
        before, self.weights = self.weights, self.tensors.weights()
        taken, held_back = self.tensors.gradients(self.used), self.tensors.held_back()
        used = self.tensors.rounded_weights()
        moments = kept_moments(self.tensors)
        drawn = None if self.replay is None else self.replay.collect(step)
        halfway = not self.resumed and step == self.spec.training.steps // 2
        if halfway and self.setup.process.nodes == 1:
            self.lost = resume(self.setup, step, self.folder)
        if self.updates is None:
            return  # not the main rank
        (whole,) = next(self.batches).micro_batches
        tokens = whole.source.cpu(), whole.target_input.cpu(), whole.target_output.cpu()
        drops = NONE_DROPPED
        if drawn is not None:
            try:
                drops = drawn.imposed(*tokens)
            except OtherSentences:
                self.lost.append(f"the batch of step {step}")
        size = float(norm)
        if not math.isfinite(size):
            self.updates.done(step, self.weights, None)
            return
        self.updates.done(step, self.weights, taken, self.tensors.unused(self.used))
        if used is not None:
            self.updates.rounds(step, used)
        if moments is not None:
            self.updates.keeps(step, *moments)
        self.compared += 1
        still = {name for name, gradient in taken.items() if not gradient.any()}
        self.idle &= still
        at_point = bool(self.waiting) and step >= self.waiting[0]
        if held_back is None and not at_point and still <= self.idle:
            return
        # The gradients before clipping: afterwards a common factor on all of them would not show.
        limit = self.spec.training.clip_norm
        scale = max(1.0, (size + CLIP_EPSILON) / limit) if limit else 1.0
        gradients = {name: tensor * scale for name, tensor in taken.items()}
        seen = Seen(step, before, gradients, tokens, drops, loss, size)
        if doubtful := still - self.idle:
            rightly = self._negligible(seen) & doubtful
            for name in sorted(doubtful - rightly):
                self.still.setdefault(name, []).append(step)
            if self.compared == 1:
                self.idle = rightly
        if held_back is None and not at_point:
            return
        if at_point:
            self.waiting.pop(0)
        if not self.confirmed:
            self._confirm_on_the_cpu(seen)
        if held_back is None:
            self._point(seen)
        else:
            self._returned(seen, held_back, at_point)

    def _may_be_small(self, step: int) -> bool:
        """Whether the batch of ``step`` may be so small that, with fewer bits, gradients of tensors are mostly
        rounding. Only the norm of them all is compared then."""
        return self.form is not SINGLE and step in self.resumed[:-1]

    def _negligible(self, kept: Seen) -> set[str]:
        """The tensors whose gradient is 0 but for rounding: those of queries with a single key, behind
        ReLUs that are all closed, and biases of keys. With few tokens some steps round these to 0."""
        seen = kept._replace(before=self._used(kept.before))
        sizes = {name: norm_of(g) for name, g in self._passed(seen, SINGLE).gradients.items()}
        least = NEGLIGIBLE * max(sizes.values())
        return {name for name, size in sizes.items() if size <= least}

    def _used(self, kept: Tensors) -> Tensors:
        return self.form.weights_used(kept, self.tensors.parameters)

    def _point(self, kept: Seen) -> None:
        """Compares loss and gradients, in 64 bits if 32 leave a doubt.

        Results in 32 bits are as close to those in 64 as the run's own, and take half the time.
        """
        form = self.form
        # If a technique rounds weights, its gradient belongs to the rounded ones. With the others,
        # errors of that size would not show: rounding moves many weights near 1 to the same side.
        seen = kept._replace(before=self._used(kept.before))
        emulated = None if form is SINGLE else self._passed(seen, form)
        # On a GPU, results in 32 bits would come from the same library as the run's.
        single = self.exact.device.type == "cpu" and single_is_independent(self.spec)
        # Next to the rounding of fewer bits, that of 32 does not matter.
        several = (SINGLE, EXACT) if form is SINGLE else (SINGLE,)
        kinks: dict[str, float] = {}
        for numbers in several if single else (EXACT,):
            right = self._passed(seen, numbers)
            floors = self.floors if emulated is None else self._apart(emulated, right)
            point, found = self._compared(seen, right, floors)
            measured = emulated is None and floors is not None and numbers is not EXACT
            if not measured and self._in_doubt(point, found):
                if floors is None or emulated is None:
                    # So far the bound only allowed what any program in 32 bits is off by.
                    self.floors = floors = self._apart(self._disturbed(seen), right)
                else:
                    # In a small tensor, the first measurement may have been small by luck: again, with
                    # weights that round to other numbers.
                    weights = self._used(moved(kept.before, form.unit))
                    other = kept._replace(before=weights)
                    again = self._apart(self._passed(other, form), self._passed(other, numbers))
                    floors = floors.widened(again)
                point, found = self._compared(seen, right, floors)
            # Most deviations near a bound come from a ReLU on the other side; 64 bits explain few.
            if not kinks and _near_a_bound(found, self.ceiling):
                near = windows(right.inputs, None if emulated is None else emulated.inputs)
                kinks = self._kinks(seen, right.gradients, numbers, near)
            if kinks:
                found = [g.model_copy(update={"kinks": kinks[g.tensor]}) for g in found]
            if not self._in_doubt(point, found):
                break
        if self._may_be_small(seen.step):
            usual = median(g.rounding for g in determined(found) or found)
            point = point.model_copy(update={"norm_rounding": max(point.norm_rounding, usual)})
            self.points.append(point)
            return
        self.points.append(point)
        self.gradients += found
        if emulated is not None:
            for g in found:
                both = seen.gradients[g.tensor], emulated.gradients[g.tensor]
                self.errors.add(g, *both, right.gradients[g.tensor])

    def _compute_on(self, device: torch.device) -> None:
        for plain in (self.exact, self.unsmoothed):
            if isinstance(plain, Plain):  # a model of another library stays on the CPU
                plain.device = device

    def _confirm_on_the_cpu(self, seen: Seen) -> None:
        """Raises RuntimeError if the plain function has other gradients in 64 bits on its device than on
        the CPU, for the first rows of a batch. A whole batch takes the CPU minutes."""
        device, self.confirmed = self.exact.device, True
        source, target, labels = (each[:ROWS_ON_CPU] for each in seen.tokens)
        drops = seen.drops.rows(0, ROWS_ON_CPU)
        few = seen._replace(tokens=(source, target, labels), drops=drops)
        there = self._passed(few, EXACT)
        self._compute_on(torch.device("cpu"))
        here = self._passed(few, EXACT)
        self._compute_on(device)
        # Of the whole gradient: that of some tensors is only rounding.
        size = math.hypot(*map(norm_of, here.gradients.values()))
        for name, expected in here.gradients.items():
            apart = norm_of(there.gradients[name] - expected) / size
            if not apart <= APART_IN_64_BITS:
                raise RuntimeError(
                    f"in 64 bits, {device} computes a different gradient of {name} than the CPU "
                    f"({apart:.1e} of the whole): the GPU, its driver or torch is faulty"
                )

    def _in_doubt(self, point: CheckedPoint, found: Sequence[TensorDistance]) -> bool:
        """Whether a deviation is so close to its bound that more exact numbers may matter."""
        ceiling = CEILINGS.loss if self.form is SINGLE else WIDEST_LOSS
        near = NEAR_A_BOUND * allowed(point.rounding, 0.0, ceiling)
        return _near_a_bound(found, self.ceiling) or (
            abs(point.loss / point.expected_loss - 1) >= near
        )

    def _passed(self, seen: Seen, form: Format) -> Pass:
        """The results of the plain function in the format ``form``."""
        return self.exact.loss_and_gradients(seen.before, seen.tokens, form, seen.drops)

    def _disturbed(self, seen: Seen) -> Pass:
        """The same in 32 bits with other rounding errors: half of the weights differ in their last
        place, and the rows of the batch come in reverse order."""
        source, target, labels = (each.flip(0) for each in seen.tokens)
        weights, drops = in_the_last_place(seen.before), seen.drops.backwards()
        found = self.exact.loss_and_gradients(weights, (source, target, labels), ANY_SINGLE, drops)
        return found._replace(losses=found.losses.flip(0))

    def _apart(self, rounded: Pass, right: Pass) -> Floors:
        """The distance of loss and gradients with other rounding errors from the ``right`` ones."""
        found = {}
        of_rounded, of_right = 0.0, 0.0
        for name, gradient in right.gradients.items():
            d = distance(name, 0, rounded.gradients[name], gradient, 0.0)
            error = math.hypot(d.error, _message_rounding(self.spec, gradient))
            found[name] = error, abs(d.ratio * d.cosine - 1)
            of_rounded = math.hypot(of_rounded, d.ratio * d.size)
            of_right = math.hypot(of_right, d.size)
        norm = abs(of_rounded / of_right - 1) if of_right else 0.0
        return Floors(of_loss(rounded.losses, right.losses), found, norm)

    def _compared(
        self, seen: Seen, right: Pass, floors: Floors | None
    ) -> tuple[CheckedPoint, list[TensorDistance]]:
        """Compares the run's loss, norm and gradients with the ``right`` ones. Without ``floors``,
        only the rounding of messages counts as a floor."""
        found = []
        for name, gradient in right.gradients.items():
            rounding, along = (
                floors.gradients[name] if floors else (_message_rounding(self.spec, gradient), 0.0)
            )
            mine = seen.gradients[name]
            found.append(distance(name, seen.step, mine, gradient, rounding, along))
        norm = math.hypot(*(each.size for each in found))
        of_kernel = abs(norm_in_32_bits(right.gradients) / norm - 1) if norm else 0.0
        point = CheckedPoint(
            step=seen.step,
            loss=seen.loss,
            expected_loss=right.loss,
            rounding=floors.loss if floors else 0.0,
            norm=seen.norm,
            expected_norm=norm,
            norm_rounding=max(of_kernel, floors.norm if floors else 0.0),
        )
        return point, found

    def _kinks(
        self, seen: Seen, right: Tensors, numbers: Format, near: Sequence[float]
    ) -> dict[str, float]:
        """For each tensor, the error in its ``right`` gradient, computed in the format ``numbers``, if
        every ReLU with an input ``near`` 0 takes the other side: some open too late, others too early.
        """
        kinks = dict.fromkeys(right, 0.0)
        for side in (1.0, -1.0) if near else ():
            form = replace(numbers, gates=tuple(side * width for width in near))
            shifted = self._passed(seen, form).gradients
            for name, gradient in right.items():
                kinks[name] += distance(name, 0, shifted[name], gradient, 0.0).error
        return kinks

    def _returned(self, seen: Seen, held_back: Tensors, at_point: bool) -> None:
        """Adds up all gradients since the start and compares the sums ``at_point``: what a message
        leaves out at one step is sent at a later one, or still held back."""
        right, floor = (self._passed(seen, form).gradients for form in (EXACT, self.form))
        for sums, more in zip(self.sums, (seen.gradients, right, floor), strict=True):
            for name, gradient in more.items():
                sums[name] = sums.get(name, 0.0) + gradient.double()
        if at_point and not self._may_be_small(seen.step):
            found, right, floor = self.sums
            for name, total in right.items():
                rounding = distance(name, seen.step, floor[name], total, 0.0).error
                mine = found[name] + held_back[name].double()
                self.gradients.append(distance(name, seen.step, mine, total, rounding))

    def read(self) -> Checks | None:
        """The results; None on ranks other than the main one."""
        validation = None
        if not self.follows:
            plain, weights = self.unsmoothed, self.weights
            validation = checked_validation(self.setup, plain, weights, self.evaluating)
        if self.updates is None:
            return None
        self.batches.close()
        decoding = None
        if not self.resumed:  # otherwise training has hardly changed the weights
            model = self.tensors.pattern
            decoding = checked_decoding(
                self.spec, model, self.weights, self.exact, self.setup.device
            )
        return Checks(
            points=self.points,
            gradients=self.gradients,
            means=self.errors.read(),
            updates=self.updates.read(),
            without_gradient=[
                f"{name}, step {steps[0]}"
                for name, steps in self.still.items()
                if len(steps) < self.compared
            ],
            not_resumed=self.lost,
            validation=validation,
            decoding=decoding,
        )


def norm_in_32_bits(gradients: Tensors) -> float:
    """The norm of a whole gradient by torch's kernel. On a CPU it adds one square after the other in 32
    bits: with torch 2.13, the norm of 2 million numbers is up to 3e-4 off, of 39 million up to 3e-3.
    """
    norms = (float(torch.linalg.vector_norm(each.float())) for each in gradients.values())
    return math.hypot(*norms)


def plain_function(
    spec: RunSpec, vocabulary: int, smoothing: float, published: bool = False
) -> Plain | OwnModel:
    """The plain function for the model that ``spec`` trains, with this label ``smoothing``. For
    ``published`` see :func:`transformer_core.certify.plain_models.smoothed_loss`."""
    if isinstance(spec.model, Transformer | TorchTransformer):
        return PlainModel(spec.model, smoothing, published)
    if isinstance(spec.model, DecoderOnly):
        masked = isinstance(spec.task, LanguageModel) and spec.task.texts == "masked"
        return PlainDecoder(spec.model, smoothing, masked, published)
    return OwnModel(spec.model, vocabulary, smoothing, spec.task, published)


def windows(right: Sequence[Tensor], rounded: Sequence[Tensor] | None) -> list[float]:
    """For each ReLU, the distance from 0, relative to the size of its inputs, within which an input
    may fall on either side: a multiple of the error of the ``rounded`` inputs, which grows from layer
    to layer. In 32 bits, where ``rounded`` is None, a constant."""
    if rounded is None:
        return [NEAR_SINGLE * SINGLE.unit] * len(right)
    pairs = zip(rounded, right, strict=True)
    return [NEAR_FEWER_BITS * float((a - b).abs().max()) for a, b in pairs]


def _near_a_bound(gradients: Sequence[TensorDistance], ceiling: float) -> bool:
    """Whether any of ``gradients`` is so far off that 64 bits, or ReLUs near 0, may matter."""
    # Only tensors that will be judged: others would raise the median, and so hide a doubt.
    compared = determined(gradients)
    usual = median(g.rounding for g in compared) if compared else 0.0
    return any(
        abs(apart) > NEAR_A_BOUND * (share * allowed(g.rounding, usual, ceiling) + g.kinks)
        for g in compared
        for apart, share in ((g.error, 1.0), (g.ratio - 1, RATIO_SHARE))
    )


@torch.no_grad()
def moved(weights: Tensors, share: float) -> dict[str, Tensor]:
    """``weights``, each element changed at random by up to this ``share`` of it."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor
        * (1 + share * (2 * torch.rand(tensor.shape, generator=generator).to(tensor.device) - 1))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


@torch.no_grad()
def in_the_last_place(weights: Tensors) -> dict[str, Tensor]:
    """``weights``, a random half of the elements changed by one unit in the last place."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in weights.items():
        chosen = torch.rand(tensor.shape, generator=generator) < 0.5
        further = torch.nextafter(tensor, 2 * tensor) if tensor.is_floating_point() else tensor
        found[name] = torch.where(chosen.to(tensor.device), further, tensor)
    return found


def _whole_batches(setup: Setup) -> Generator[GlobalBatch, None, None]:
    """The global batches, each as one micro-batch with every pair in a row of its own."""
    batching = setup.spec.batching.model_copy(update={"rows": PaddedRows()})
    seed = setup.spec.training.seed
    feed = Feed(setup.train_store, batching, seed, 0, 1, 1, setup.device, prefetch=0)
    return feed.batches()


def _message_rounding(spec: RunSpec, gradient: Tensor) -> float:
    """The relative error that the number format of messages causes in ``gradient``; 0 in 32 bits.

    Every rank rounds its own gradient, and the sum is rounded once more: these errors are independent
    and of about the same size.
    """
    hook = spec.parallel.message_hook
    if hook is None or hook.rounds_to is None:
        return 0.0
    rounding, _ = ROUNDINGS[hook.rounds_to]
    once = distance("", 0, rounding(gradient.float()), gradient, 0.0).error
    return once * math.sqrt(spec.world_size + 1)


@torch.no_grad()
def resume(setup: Setup, step: int, folder: Path) -> list[str]:
    """Saves a checkpoint, overwrites all state that it holds, and resumes from it. Every rank must
    call this. Returns the kinds of state that some rank did not restore, except weights and optimizer
    state: the next update shows whether these were. Raises RuntimeError if there is no checkpoint."""
    before = _other_state(setup)
    checkpoint.save(folder, setup, step, {})
    setup.strategy.synchronise()  # until the main rank has renamed it
    _lose(setup)
    between = _other_state(setup)
    path = checkpoint.latest(folder, setup)
    if path is None:
        raise RuntimeError(f"no checkpoint in {folder}, although one was just written")
    checkpoint.load(path, setup)
    setup.strategy.synchronise()
    if setup.process.is_main:
        shutil.rmtree(folder)
    after = _other_state(setup)
    # State that overwriting did not change cannot show that it was restored.
    lost = [
        float(not _same(kept, after[kind]) or (bool(kept) and _same(kept, between[kind])))
        for kind, kept in before.items()
    ]
    everywhere = zip(before, zip(*setup.strategy.gather(lost), strict=True), strict=True)
    return [kind for kind, of_ranks in everywhere if any(of_ranks)]


def _other_state(setup: Setup) -> dict[str, dict[str, object]]:
    """The state in a checkpoint other than weights and optimizer state, by kind."""
    random: dict[str, object] = {"cpu": torch.get_rng_state()}
    if setup.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(setup.device)
    # Copies, because a strategy may return tensors that it goes on changing.
    messages = {name: tensor.clone() for name, tensor in setup.strategy.memory().items()}
    return {
        "random numbers": random,
        "number format": setup.precision.state(),
        "memory of messages": dict(messages),
    }


def _lose(setup: Setup) -> None:
    """Overwrites all state that a checkpoint holds."""
    for parameter in setup.model.parameters():
        parameter.zero_()
    setup.optimizer.state.clear()
    torch.manual_seed(2**31 - 1)  # no training uses it
    training = setup.spec.training
    fresh = build_precision(training.precision, setup.device, training.clipping)
    vars(setup.precision).update(vars(fresh))
    memory = setup.strategy.memory()
    setup.strategy.remember({name: torch.zeros_like(tensor) for name, tensor in memory.items()})


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other
