"""Does a changed script train the same model? Compares its first steps with those of the original.

Every gradient, every update and every loss of the first steps is compared, with dropout on and the
same seeds. How far may they differ? As far as the script differs from itself when its first weights
change by half a unit in the last place of the number format in question and, for formats with fewer
bits than float32, the results of its modules change too. This floor is measured in the same session,
tensor by tensor, and grows over the steps as the differences do.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transformer_core.certify import floors
from transformer_core.certify.floors import WEIGHTS_ONLY, WIDEST, allowed, of_adam
from transformer_core.common.percent import percent
from transformer_core.tune.causes import (
    other_batches,
    other_parts,
    other_rates,
    other_tensors,
    replaced_tensors,
    rounding_decides,
)
from transformer_core.tune.records import BUCKETS, Key, Record, Sketch, distance, norm
from transformer_core.tune.techniques.technique import NOISE, Rounding

Word = Literal["same", "different", "undecided"]
Bad = Mapping[Key, str]  # reasons by tensor and step
Steps = Mapping[int, str]  # reasons by step

MARGIN = WEIGHTS_ONLY * floors.MARGIN
"""A difference of more than this multiple of the measured floor is not rounding."""
CEILING: dict[Rounding, float] = {
    "float64": 0.02,
    "exact": 0.02,
    "float32": 0.02,
    "tf32": 0.1,
    "bfloat16": WIDEST,
    "float8": WIDEST,
}
"""Largest relative difference allowed for a tensor's gradient, whatever the floor."""
SMALLEST = 1.5e-10
"""Smaller floors do not count in 64 bits. Rounding alone moves gradients by far less."""
PROPORTIONAL = 0.01
"""Up to this floor, the effect of a disturbance is proportional to it."""
PRODUCT = 3
"""A product is off by half a unit in the last place for each operand and once for its result. Where
it does not depend on the weights, disturbing them does not show this."""
ADDED = 1e-3
"""Up to this relative difference of updates, adding them to the weights in parts, as those of a sparse gradient,
is the same: each part rounds the weights again."""
UPDATE_CEILING = 0.8
"""The same for an update. A tensor without its update, or with twice its update, is 1 off."""
OVERTURNED = 0.5
"""Above this floor a tensor's direction is lost: the difference of two such runs says nothing, however
large it is."""
TOTAL = 0.2
"""The same for the size of all gradients or updates together, if tensors cannot be compared one by one."""
CLOSER = 0.1
"""Updates tell more than gradients if they are closer to the script's by this factor."""
UNDONE = (
    "the optimizer or its rate undoes such a factor here, but clipping, an eps or a factor that varies would "
    "show it later: no verdict is possible"
)
FEW = 8
"""The errors of so few numbers do not average out: one measurement of a floor may be several times
smaller than the next. The bias of two classes is in effect one number, because their gradients nearly
cancel in a balanced batch."""
NEGLIGIBLE: dict[Rounding, float] = {
    "float64": 1e-12,
    "exact": 1e-5,
    "float32": 1e-5,
    "tf32": 1e-3,
    "bfloat16": 3e-3,
    "float8": 5e-2,
}
"""A gradient below this fraction of the largest tensor's is only rounding, such as that of the bias
of keys in attention, which is 0. Its difference is measured relative to this fraction. The same holds
for a bias below this fraction of its own layer's weight; see :func:`_summed_with`."""


@dataclass(frozen=True)
class Certificate:
    """How far a changed script is from the original."""

    word: Word
    reason: str
    loss: float = 0.0  # largest relative difference of a loss
    gradient: float = 0.0  # largest relative difference of a tensor's gradient (2-norms)
    update: float = 0.0  # largest relative difference of a tensor's update
    floor: float = 0.0
    """The floor of ``gradient``: the same for the script against its disturbed copy."""
    worst: str = ""  # step and tensor of ``gradient``
    steps: int = 0
    last: int = 0  # number of the last of these steps
    tensors: int = 0
    identical: bool = False  # whether everything is equal to the last bit
    dropout: bool = True  # whether dropout was on
    batches: bool = False  # whether other batches are the difference


SO_DOES_THE_SCRIPT = "so does the script itself after rounding: no verdict is possible"


def certify(
    found: Record,
    own: Record,
    copies: Sequence[Record],
    rounding: Rounding,
    dropout: bool = True,
    divided: bool = False,
    by_updates: bool = False,
    padded: bool = False,
) -> Certificate:
    """Compare the record ``found`` of a changed script with the script's ``own`` record.

    ``copies`` are records of the script with its weights disturbed by the ``rounding`` of the change: the
    floor of a tensor is the largest of theirs. If the batch is ``divided``, all ranks and micro-batches are
    compared together; if its parts may be ``padded`` otherwise, losses, gradients and updates alone decide. If
    ``by_updates``, gradients may differ where the optimizers make the same updates of them.
    """

    def judged(word: Word, reason: str, **more: Any) -> Certificate:
        keys = own.of("gradient")
        steps, tensors = {key[1] for key in keys}, {key[2] for key in keys}
        more |= {"steps": len(steps), "last": max(steps, default=0), "tensors": len(tensors)}
        return Certificate(word, reason, dropout=dropout, **more)

    passes, own_passes = (each.losses().shape[2] for each in (found, own))
    # Gradients that are divided instead of the losses leave losses a factor apart.
    factor = divided and passes != own_passes
    # Otherwise the same loss comes in other parts, such as one sum: only its gradients can be compared.
    comparable = divided or passes == own_passes
    if divided:
        if not padded and (reason := other_parts(found, own)):
            return judged("different", reason)
        # Shards differ between ranks; of other numbers of ranks, all have the same whole tensors.
        ranks = len(own.ranks) if len(found.ranks) == len(own.ranks) else 1
        found, own, *copies = (each.together(ranks) for each in (found, own, *copies))
    if len(found.ranks) != len(own.ranks):
        return Certificate("different", f"{len(found.ranks)} ranks instead of {len(own.ranks)}")
    if found.equals(own):
        return judged("same", "equal to the last bit", identical=True)
    if verdict := _on_other_data(found, own, copies, divided):
        return judged(**verdict)
    # Nothing can be measured relative to what overflows.
    infinite = own.infinite()
    found, own, *copies = (each.without(infinite) for each in (found, own, *copies))
    loss, *loss_floors = (
        _loss_difference(e, own, factor) if comparable else 0.0 for e in (found, *copies)
    )
    least = CEILING[rounding] / 25 if rounding != "float64" else 0.0
    bound = _bound(rounding, _floor(max(loss_floors), rounding), 0.0, math.inf, least)
    losses = [] if loss <= bound else [f"a loss is {loss:.1e} off, {bound:.1e} allowed"]
    if tensors := replaced_tensors(found, own):
        totals = [each for kind in CAUSES for each in _other_totals(kind, found, own)]
        if comparable and not losses and not totals:
            reason = f"{tensors}; losses agree within {loss:.1e}: no verdict is possible"
            return judged("undecided", reason, loss=loss)
        return judged("different", "; ".join([*[*losses, *totals][:2], tensors]))
    gradient, floor, where, gradients = _largest("gradient", found, own, copies, rounding)
    update, _, _, updates = _largest("update", found, own, copies, rounding)
    *_, buffers = _largest("buffer", found, own, copies, rounding)
    numbers = {"loss": loss, "gradient": gradient, "update": update, "floor": floor}
    more: Any = {"worst": where, **{name: min(each, 1e12) for name, each in numbers.items()}}
    larger = _other_sizes("gradient", found, own, copies, rounding)
    sizes = _other_sizes("update", found, own, copies, rounding)
    # The size is no cause if it explains little of a difference, as with another moment of Adam.
    telling = _other_sizes("update", found, own, copies, rounding, least=update / 10)
    reasons = _cause_first(losses, gradients, larger, updates, sizes, bool(telling))
    if reasons := [*dict.fromkeys([*reasons, *buffers.values()])]:  # ranks may have the same
        if by_updates and gradients and not updates and not sizes and not buffers:
            word = _judged_by_updates(found, own, gradients, rounding)
            if word == "same" and not losses:
                reason = f"all losses and updates agree, and only gradients differ: {reasons[0]}"
                return judged("same", reason, **more)
            if word == "undecided" and (
                not comparable or _loss_difference(found, own, True) <= bound
            ):
                reason = f"{'; '.join(reasons[:2])}; updates agree within {update:.1e}: {UNDONE}"
                return judged("undecided", reason, **more)
        return judged("different", "; ".join(reasons[:2]), **more)
    # However much rounding the weights moves, the rounding of one product is the same training.
    product = PRODUCT * NOISE[rounding]
    close = gradient <= product and update <= of_adam(product, MARGIN)
    overturned = floor > CEILING[rounding] and _first_floor(own, copies) > CEILING[rounding]
    if overturned and not close:
        reason = f"rounding the first weights changes gradients by {percent(floor, 0)}: no verdict is possible"
        return judged("undecided", reason, **more)
    reason = f"gradients differ by at most {gradient:.1e}, after rounding alone by {floor:.1e}"
    if not comparable:
        reason += f", from {passes} instead of {own_passes} backward passes a step"
    return judged("same", reason, **more)


def _on_other_data(
    found: Record, own: Record, copies: Sequence[Record], divided: bool
) -> dict[str, Any]:
    """The verdict if other tensors are trained, on other data, or without a number that overflows in the script;
    otherwise empty."""
    # The first copy tells which inputs are data.
    batches = "" if divided else other_batches(found, own, copies[0])
    infinite = own.infinite()
    if reason := other_rates(found, own) or batches or other_tensors(found, own):
        # Actions of a policy, or the passes of a line search: rounding decides what comes next.
        undecided = not divided and any(
            rounding_decides(copy, own) or other_tensors(copy, own) for copy in copies
        )
    elif finite := infinite - found.infinite():
        step, kind, name = min(finite)[1].split(" ", 2)
        reason = f"the {kind} of {name} is finite in step {step}, but the script's is not"
        undecided = any(infinite - copy.infinite() for copy in copies)
    else:
        return {}
    if undecided:
        return {"word": "undecided", "reason": f"{reason}; {SO_DOES_THE_SCRIPT}"}
    return {"word": "different", "reason": reason, "batches": reason == batches}


def _cause_first(
    losses: list[str], gradients: Bad, larger: Steps, updates: Bad, sizes: Steps, telling: bool
) -> list[str]:
    """All reasons, the cause first: a wrong gradient, or right gradients and wrong updates. Gradients may all be
    ``larger``, updates have other ``sizes``, which tell the cause or not."""
    first, first_update = (
        min([step for _, step, _ in bad] + [*factors], default=math.inf)
        for bad, factors in ((gradients, larger), (updates, sizes))
    )
    cause = [larger[step] for step in larger if step == first <= first_update]
    changed = [*updates.values(), *sizes.values()]
    if telling:
        changed = [*sizes.values(), *updates.values()]
    if first == 1 or cause or (not telling and first <= first_update):
        return [*cause, *losses, *gradients.values(), *changed]
    return [*changed, *losses, *gradients.values()]


def agrees_at_first(found: Record, own: Record, copies: Sequence[Record]) -> bool:
    """Whether the first gradient of each tensor is equal up to rounding to float32. Then the model
    computes in no coarser format, and later differences come from the updates."""
    infinite = own.infinite()
    mine, theirs, *disturbed = (
        _first_gradients(each.without(infinite)) for each in (found, own, *copies)
    )
    *_, bad = _largest("gradient", mine, theirs, disturbed, "float32")
    return not bad


def _judged_by_updates(
    found: Record, own: Record, gradients: Mapping[Key, str], rounding: Rounding
) -> Word:
    """The verdict if only ``gradients`` differ. Updates decide if they are far closer than these: an
    optimizer may add weight decay to gradients itself, or get them with it. But Adam gives the same
    updates for gradients that are multiples of the original's, so no verdict is possible then."""
    multiples = []
    (mine, its), (theirs, own_updates) = (
        (record.of("gradient"), record.of("update")) for record in (found, own)
    )
    # A step of another optimizer leaves gradients in a critic that its own optimizer clears before it steps.
    stepped = {(k[0], k[2]) for k in own_updates if norm(own_updates[k]) and k not in gradients}
    used = [
        key
        for key in gradients
        if key in own_updates  # The first late step has none.
        and (norm(own_updates[key]) or norm(its[key]) or (key[0], key[2]) not in stepped)
    ]
    if not used and any(key in own_updates for key in gradients):
        return "same" if rounding in ("float64", "float32") else "different"
    for key in used:
        one, other = mine[key], theirs[key]
        gap, moved = distance(one, other), norm(own_updates[key])
        apart = distance(its[key], own_updates[key]) / moved if moved else math.inf
        if not apart * norm(other) <= CLOSER * gap < math.inf:
            return "different"
        rest = one - other * (float(one @ other) / max(norm(other) ** 2, 1e-30))
        if len(other) > 1:
            multiples.append(norm(rest) <= CLOSER * gap)
    if any(multiples) or not multiples:
        return "undecided"
    return "same" if rounding in ("float64", "float32") else "different"


def _first_gradients(record: Record) -> Record:
    ranks = []
    for rank in record.ranks:
        gradients = [key for key in rank if " gradient " in key]
        first = {key.partition(" gradient ")[2]: key for key in reversed(gradients)}
        ranks.append({key: rank[key] for key in first.values()})
    return Record(ranks)


SUMS = 1e-4
"""Relative difference of losses that another order of sums explains."""


def repeats(one: Record, other: Record) -> bool:
    """Whether two runs of a script are the same training, perhaps with other orders of sums."""
    return _loss_difference(one, other) < SUMS


def trust(one: Record, other: Record) -> tuple[bool, str]:
    """Whether two runs of a script are equal, and if not, where they begin to differ."""
    same, words = _trust(one, other)
    updates = one.of("update")
    if updates and not any(update.any() for update in updates.values()):
        words += (
            ". But no weight changed: does the optimizer step, and is its learning rate above 0? No updates "
            "could be compared"
        )
    return same, words


def _trust(one: Record, other: Record) -> tuple[bool, str]:
    if one.equals(other):
        return True, "the same losses, gradients and weights, to the last bit"
    first = {key for key in one.ranks[0] if key.startswith("0 weight")}
    theirs = other.ranks[0]
    if any(k not in theirs or not np.array_equal(one.ranks[0][k], theirs[k]) for k in first):
        return False, (
            "its first weights differ from run to run: they are drawn with a seed from the clock or "
            "the system, or never written (to_empty, torch.empty); call torch.manual_seed with a "
            "number, and initialize every layer"
        )
    if reason := other_batches(one, other, other):
        return False, (
            f"{reason}: the order of files, a generator without a seed, or several processes decide which data it "
            "reads; sort the files, and seed also generators such as random.Random() and numpy.random.RandomState()"
        )
    gap = _loss_difference(one, other)
    if gap < SUMS:
        what = f"its losses differ by {gap:.0e}" if gap else "its gradients or weights differ"
        return False, (
            f"{what} from run to run, by no more than the order of sums explains: threads or kernels "
            "are not deterministic"
        )
    return False, (
        f"its losses differ by {gap:.0e} on the same weights and batches: something draws random "
        "numbers that no seed of torch, numpy or random decides"
    )


def spoiled(found: Record) -> int | None:
    """The first step after which a weight is NaN that was not so at first; None if there is none.

    A change of such a script cannot be judged: NaN equals NaN, whatever it does."""
    weights = found.of("weight")
    numbers = {(r, n) for (r, step, n), w in weights.items() if step == 0 and not np.isnan(w).any()}
    lost = (s for (r, s, n), w in weights.items() if (r, n) in numbers and np.isnan(w).any())
    return min(lost, default=None)


TELLING = 1e-3
"""A smaller logarithm of a factor has none of these causes."""
CAUSES = {
    "gradient": ": a sum instead of a mean, a mean over a different number of tokens or rows, or clipping",
    "update": "",
}


def _other_sizes(
    kind: str,
    found: Record,
    own: Record,
    copies: Sequence[Record],
    rounding: Rounding,
    least: float = 0.0,
) -> dict[int, str]:
    """Reasons, by step, if gradients or updates are all larger or smaller, as with another learning rate,
    by at least the fraction ``least``.

    Rounding rotates them, but on the whole makes them neither longer nor shorter: the median ratio
    over all tensors of a step stays near 1, as it does for the disturbed ``copies``.
    """
    sizes, others, *disturbed_sizes = (
        {key: norm(each) for key, each in record.of(kind).items()}
        for record in (own, found, *copies)
    )
    bad = {}
    for step in sorted({key[1] for key in sizes}):
        here = {key: size for key, size in sizes.items() if key[1] == step and size}
        mine, *disturbed = (
            [np.log(there[key] / size) for key, size in here.items() if there.get(key)]
            for there in (others, *disturbed_sizes)
        )
        if not mine or not all(disturbed):
            continue
        size = float(np.median(mine))
        still = max(abs(float(np.median(each))) for each in disturbed)
        spread = max(float(np.median(np.abs(each))) for each in disturbed)
        still, spread = (_floor(each, rounding) for each in (still, spread))
        bound = _bound(rounding, max(still, NOISE[rounding]), spread, math.inf)
        if kind == "gradient":
            # The cause is certain only if all tensors agree.
            bound = max(bound, 10 * float(np.median(np.abs(np.subtract(mine, size)))))
        if not abs(size) <= max(bound, least):
            times = (
                f"{np.exp(size):.{3 if abs(size) > 0.005 else 6}g} times as large in step {step}"
            )
            bad[step] = f"{kind}s are {times}{CAUSES[kind] if abs(size) > TELLING else ''}"
    return bad


def _other_totals(kind: str, found: Record, own: Record) -> list[str]:
    """Reasons if all gradients or updates of a step together are larger or smaller than rounding and
    their sketches explain."""
    totals: list[dict[int, float]] = [{}, {}]
    for total, record in zip(totals, (found, own), strict=True):
        for (_, step, _), each in record.of(kind).items():
            total[step] = math.hypot(total.get(step, 0.0), norm(each))
    ratios = {step: totals[0].get(step, 0.0) / size for step, size in totals[1].items() if size}
    return [
        f"{kind}s are together {ratio:.3g} times as large in step {step}{CAUSES[kind]}"
        for step, ratio in ratios.items()
        if not abs(ratio - 1) <= TOTAL
    ]


def _loss_difference(found: Record, own: Record, factor: bool = False) -> float:
    """Largest relative difference of a loss in any step, apart from a common ``factor``; infinite if one
    is not finite."""
    mine, theirs = found.losses(), own.losses()
    if mine.shape != theirs.shape:
        return float("inf")
    both = np.isnan(mine) & np.isnan(theirs) | (np.isinf(mine) & (mine == theirs))
    # A GradScaler multiplies losses by a power of two. The gradients tell if it is not undone.
    used = np.isfinite(mine) & np.isfinite(theirs) & (mine * theirs > 0)
    if used.any():
        power = np.median(np.log2(mine[used] / theirs[used]))
        mine = mine / 2.0 ** (power if factor else np.round(power))
    mine, theirs = (np.where(both, 0.0, each) for each in (mine, theirs))
    gap = np.abs(mine - theirs) / np.maximum(np.abs(theirs), 1e-3)
    return float(gap.max(initial=0.0)) if np.isfinite(gap).all() else float("inf")


def _largest(
    kind: str, found: Record, own: Record, copies: Sequence[Record], rounding: Rounding
) -> tuple[float, float, str, dict[Key, str]]:
    """Largest relative difference of a kind, the floor of that tensor, its place, and a reason for
    each difference beyond its bound."""
    changed, originals, *disturbed = (each.of(kind) for each in (found, own, *copies))
    weights = own.of("weight")
    sizes = {key: norm(original) for key, original in originals.items()}
    smallest = NEGLIGIBLE[rounding] * max(sizes.values(), default=0.0)
    noisy = _Noisy(own, copies, rounding) if kind == "update" else None
    alike = _equal_gradients(found, own) if noisy else set()
    relative: dict[Key, tuple[float, float]] = {}
    scales: dict[Key, float] = {}
    for key, theirs in originals.items():
        mine, others = changed.get(key), [each[key] for each in disturbed if key in each]
        if mine is None or mine.shape != theirs.shape:
            relative[key] = float("inf"), 0.0
            continue
        if noisy is not None:
            mine, theirs, *others = noisy.without(key, mine, theirs, *others)
        scale = max(norm(theirs), smallest, _summed_with(key, sizes, rounding), 1e-30)
        scales[key] = scale
        noise = max((distance(each, theirs) for each in others), default=0.0) / scale
        relative[key] = distance(mine, theirs) / scale, _floor(noise, rounding)
    typical = floors.usual_floors((key[1], noise) for key, (_, noise) in relative.items())
    # Statistics of few numbers follow weights that chance moves: one copy may show little of it by luck.
    few: dict[int, float] = {}
    for key, (_, noise) in relative.items():
        if kind == "buffer" and len(originals[key]) <= FEW:
            few[key[1]] = max(few.get(key[1], 0.0), noise)
    # So do gradients of few numbers in which terms cancel: their rounding does not shrink with the sum, but
    # grows over the steps, like that of all.
    units = {key: max(typical[key[1]], _smallest(rounding)) / scales[key] for key in scales}
    small = [key for key in scales if kind == "gradient" and len(originals[key]) <= FEW]
    times: dict[tuple[int, str], float] = {}
    for key in sorted(small, key=lambda key: relative[key][1] / units[key]):
        times[key[0], key[2]] = relative[key][1] / units[key]  # the largest comes last
    for key in small:
        relative[key] = relative[key][0], times[key[0], key[2]] * units[key]
    bad = {}
    # Adam divides a gradient by its own size: an update feels rounding as its square root.
    ceiling = CEILING[rounding] if kind != "update" else UPDATE_CEILING
    # The first step that differs tells most: later ones follow from it.
    for key, (gap, noise) in sorted(relative.items(), key=lambda item: (item[0][1], -item[1][0])):
        least = PRODUCT * NOISE[rounding]
        if kind == "update" and key in scales:
            # A disturbed copy adds the same update to a neighbouring weight, so it does not show this rounding.
            weight = norm(weights[key[0], key[1] - 1, key[2]]) / scales[key]
            least = max(least, min(least * weight, ADDED))
        if noisy is not None and key not in alike:
            least = max(least, noisy.turned(key), of_adam(noise, MARGIN, _smallest(rounding)))
        widest = _ceiling(ceiling, noise, typical[key[1]], len(originals[key]))
        if len(originals[key]) <= FEW:
            noise = max(noise, few.get(key[1], 0.0))
        bound = _bound(rounding, noise, typical[key[1]], widest, least)
        if gap > bound:
            bad[key] = (
                f"the {kind} of {key[2]} is {gap:.1e} off in step {key[1]}, {bound:.1e} allowed"
            )
    if not relative:
        return 0.0, 0.0, "", bad
    # A step in which rounding alone changes everything says nothing about a change.
    steps = {key[1] for key in relative}
    telling = {step for step in steps if typical[step] <= ceiling} or {min(steps)}
    worst = max((key for key in relative if key[1] in telling), key=relative.__getitem__)
    return *relative[worst], f"step {worst[1]}, {worst[2]}", bad


def _floor(measured: float, rounding: Rounding) -> float:
    """The floor of a rounding, as ``measured`` on copies that it disturbs. In 64 bits, these are disturbed as much
    as float32 rounds."""
    if rounding == "float64" and measured <= PROPORTIONAL:
        return measured * NOISE["float64"] / NOISE["float32"]
    return measured


def _bound(
    rounding: Rounding, floor: float, usual: float, ceiling: float, least: float = 0.0
) -> float:
    return allowed(floor, usual, ceiling, MARGIN, least, _smallest(rounding))


def _smallest(rounding: Rounding) -> float:
    return SMALLEST if rounding == "float64" else floors.SMALLEST


def _equal_gradients(found: Record, own: Record) -> set[Key]:
    """The tensors and steps up to which all gradients are equal to the last bit: optimizers then have no
    rounding to divide by its own size."""
    mine, theirs = found.of("gradient"), own.of("gradient")
    apart: dict[tuple[int, str], int] = {}
    for (rank, step, name), gradient in sorted(theirs.items(), reverse=True):
        if not np.array_equal(mine.get((rank, step, name), ()), gradient):
            apart[rank, name] = step
    return {key for key in theirs if key[1] < apart.get((key[0], key[2]), key[1] + 1)}


def _summed_with(key: Key, sizes: Mapping[Key, float], rounding: Rounding) -> float:
    """The size of the weight's gradient in the layer of a bias whose own gradient is only rounding; 0 for
    any other tensor. ``sizes`` has the norms of all tensors.

    Before batch normalization the gradient of a convolution's bias is 0, and that of its weight is not.
    Both sum the same rounded terms over all pixels, so the bias is off by a share of the weight's
    gradient (measured under bfloat16: up to 1.7 %, 1.6 times the median floor of the tensors).
    """
    rank, step, name = key
    weight = sizes.get((rank, step, _weight_of(name)), 0.0)
    return weight if sizes[key] < NEGLIGIBLE[rounding] * weight else 0.0


def _weight_of(name: str) -> str:
    """The name of the weight in the layer of a bias; empty for any other tensor."""
    layer, dot, last = name.rpartition(".")
    return f"{layer}{dot}{last.removesuffix('bias')}weight" if last.endswith("bias") else ""


def _ceiling(least: float, floor: float, usual: float, numbers: int) -> float:
    """The ceiling of a tensor's bound, from its ``floor``, the ``usual`` floor of its step, and its
    count of ``numbers``. A measured floor may be too low by luck where rounding overturns the other
    tensors, or in a tensor of few numbers. A tensor that is overturned itself has no ceiling."""
    widest = max(floor, usual)
    times = MARGIN if numbers <= FEW else 2
    return math.inf if widest > OVERTURNED else max(least, times * widest)


def _first_floor(own: Record, copies: Sequence[Record]) -> float:
    """How far rounding moves the first gradients of a typical tensor."""
    gradients = own.of("gradient")
    disturbed = [copy.of("gradient") for copy in copies]
    first = min((key[1] for key in gradients), default=0)
    gaps = [
        _moved(key, gradient, disturbed) / norm(gradient)
        for key, gradient in gradients.items()
        if key[1] == first and norm(gradient) and any(key in each for each in disturbed)
    ]
    return float(np.median(gaps)) if gaps else 0.0


def _moved(key: Key, original: Sketch, disturbed: Sequence[Mapping[Key, Sketch]]) -> float:
    """How far rounding moves a tensor: the largest distance of a disturbed copy."""
    return max((distance(each[key], original) for each in disturbed if key in each), default=0.0)


class _Noisy:
    """Numbers whose gradient is no larger than its possible rounding error. Adam divides by the size of
    a gradient, so such numbers move as far as all others, in a direction that chance decides."""

    def __init__(self, own: Record, copies: Sequence[Record], rounding: Rounding) -> None:
        self._gradients = own.of("gradient")
        disturbed = [copy.of("gradient") for copy in copies]
        self._least = NEGLIGIBLE[rounding] * max(
            map(_root_mean_square, self._gradients.values()), default=0.0
        )
        self._shares = {
            key: _floor(_moved(key, gradient, disturbed) / max(norm(gradient), 1e-30), rounding)
            for key, gradient in self._gradients.items()
        }
        typical = floors.usual_floors((key[1], share) for key, share in self._shares.items())
        # The difference that the bound of a gradient allows, spread evenly over its numbers.
        for key, share in self._shares.items():
            usual = typical[key[1]]
            widest = _ceiling(CEILING[rounding], share, usual, len(self._gradients[key]))
            bound = _bound(rounding, share, usual, widest)
            self._shares[key] = max(4 * NOISE[rounding], bound)

    def turned(self, key: Key) -> float:
        """Relative difference of Adam's update if its gradient is off by as much as its bound allows:
        errors of a share s of a number's size flip the sign of arctan(s) / pi of all numbers, and
        each of these is 2 off."""
        rank, last, name = key
        shares = (self._shares.get((rank, step, name), 0.0) for step in range(1, last + 1))
        return 2 * float(np.sqrt(np.arctan(max(shares, default=0.0)) / np.pi))

    def without(self, key: Key, *updates: Sketch) -> list[Sketch]:
        """The updates of a tensor that is kept whole, with 0 for its noisy numbers: those whose gradient
        was small in any step so far."""
        rank, last, name = key
        noisy = np.zeros(updates[0].shape, dtype=bool)
        for step in range(1, last + 1):
            gradient = self._gradients.get((rank, step, name))
            if gradient is None or gradient.shape != noisy.shape or len(gradient) == BUCKETS:
                continue
            share = self._shares[rank, step, name]
            noisy |= np.abs(gradient) < share * max(_root_mean_square(gradient), self._least)
        return [
            np.where(noisy, 0.0, each) if each.shape == noisy.shape else each for each in updates
        ]


def _root_mean_square(values: Sketch) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
