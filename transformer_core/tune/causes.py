"""Causes of a difference between a changed script and the original.

Each function looks for one cause in the records of both, and returns it in words, or an empty string.
"""

from collections.abc import Callable, Iterator

import numpy as np

from transformer_core.certify.floors import MARGIN
from transformer_core.tune.records import Key, Record, Sketch, distance, norm

AGREES = 0.3
"""Fraction of an update by which weights in another format may differ after the same update."""
NEARER = 0.5
"""Gradients that are closer to those of older weights by this factor belong to the older weights."""


Held = Callable[[], Record | None]
"""The record of the script with its weights held constant; None if there is none."""


def explained(found: Record, own: Record, floor: Record, held: Held = lambda: None) -> str:
    """Why ``found`` differs from the script's ``own`` record, if the comparison itself does not name
    the cause.

    ``floor`` is the record of the script with its weights disturbed. ``held`` is called only if it may
    help.
    """
    return (
        other_first_weights(found, own)
        or other_statistics(found, own, floor)
        or no_optimizer(found, own)
        or older_weights(found, own, held)
    )


def other_first_weights(found: Record, own: Record) -> str:
    """Tensors that begin with other values, up to rounding to 16 bits."""
    mine, theirs = (record.of("weight") for record in (found, own))
    apart = {
        key[2]
        for key in {*mine} & {*theirs}
        if key[1] == 0 and not distance(mine[key], theirs[key]) <= 0.01 * norm(theirs[key])
    }
    if not apart:
        return ""
    return (
        f"the first weights of {some(sorted(apart))} differ: the new version draws random numbers "
        "in a different order, or loads different weights"
    )


def other_statistics(found: Record, own: Record, floor: Record) -> str:
    """Batch normalization that sees other rows in one call, although the step has the same rows: its
    running statistics differ after the first step."""
    mine, theirs = (
        {*np.concatenate([r.get("normalized", np.zeros(0)) for r in each.ranks])}
        for each in (found, own)
    )
    if not mine or not theirs or mine == theirs or not _same_rows(found, own):
        return ""
    buffers = [each.of("buffer") for each in (found, own, floor)]
    running = [key for key in buffers[1] if key[1] == 1 and ".running_" in f".{key[2]}"]
    moved = [key[2] for key in running if not _within(key, *buffers)]
    if running and not moved:
        return ""
    return (
        f"normalization over the batch takes its statistics from {max(mine):.0f} values of a channel "
        f"at a time instead of {max(theirs):.0f}"
    ) + (f" ({some(moved)} differ after step 1)" if moved else "")


def no_optimizer(found: Record, own: Record) -> str:
    """Parameters that the script updates, but whose gradients reach no optimizer in the changed one."""
    mine, theirs = found.of("gradient"), own.of("gradient")
    none = np.zeros(0)
    lost = {
        key[2]
        for key in {*found.of("orphan")} - {*own.of("orphan")}
        if norm(theirs.get(key, none)) and not norm(mine.get(key, none))
    }
    if not lost:
        return ""
    return (
        f"no optimizer updates {some(sorted(lost))}, though the model computes with it: replaced "
        "after the optimizer was made, or never handed to it"
    )


def older_weights(found: Record, own: Record, held: Held) -> str:
    """Gradients of older weights than the optimizer's: the first update agrees, but the next gradients
    are farther off than those before it, and closest to those of the script with its weights
    ``held`` constant."""
    step, update = _first_update(own)
    later = sorted({each for _, each, _ in own.of("gradient") if each > step})
    if (
        not later
        or _apart("weight", found, step, own, step) > AGREES * update
        or _apart("gradient", found, step, own, step)
        >= NEARER * _apart("gradient", found, step + 1, own, step + 1)
        or (still := held()) is None
    ):
        return ""
    old = [
        each
        for each in later
        if _apart("gradient", found, each, still, each)
        < NEARER * _apart("gradient", found, each, own, each)
    ]
    if len(old) > 1 and old == later:
        return (
            f"the gradients of steps {old[0]} to {old[-1]} are those of the first weights, which "
            "the optimizer has updated since: the model computes with a copy that is not refreshed"
        )
    if step + 1 in old:
        return (
            f"the gradients of step {step + 1} are those of the weights before the update of step "
            f"{step}: the model computes with older weights than the optimizer has"
        )
    return ""


def _first_update(own: Record) -> tuple[int, float]:
    """The first step that changes weights, and how far it moves them. It is a later step if the
    learning rate starts at 0."""
    for step in sorted({each for _, each, _ in own.of("weight")}):
        if update := _apart("weight", own, step, own, 0):
            return step, update
    return 0, 0.0


def _same_rows(found: Record, own: Record) -> bool:
    """Whether the calls of step 1 get the same rows, divided and padded in any way: all numbers have
    the same sum."""
    if not other_parts(found, own):
        return True
    mine, theirs = (next(_inputs(each))[:, 1].sum() for each in (found, own))
    return bool(np.isclose(mine, theirs, rtol=1e-6, atol=1e-6))


def _within(key: Key, *buffers: dict[Key, Sketch]) -> bool:
    """Whether a buffer of a script differs from the original's by no more than that of its disturbed
    copy."""
    mine, theirs, disturbed = (each.get(key) for each in buffers)
    if mine is None or theirs is None or disturbed is None:
        return True
    bound = MARGIN * max(distance(disturbed, theirs), 1e-6 * norm(theirs))
    return distance(mine, theirs) <= bound


def _apart(kind: str, one: Record, step: int, other: Record, its_step: int) -> float:
    """Distance of all tensors of a kind in a step of one record from those in a step of another,
    relative to the latter; infinite if they have no tensors in common."""
    gap = size = 0.0
    ones, others = one.of(kind), other.of(kind)
    for rank, name in dict.fromkeys((rank, name) for rank, _, name in others):
        mine, theirs = ones.get((rank, step, name)), others.get((rank, its_step, name))
        if mine is not None and theirs is not None:
            gap, size = gap + distance(mine, theirs) ** 2, size + norm(theirs) ** 2
    return float(np.sqrt(gap / size)) if size else float("inf")


def _values(row: Sketch) -> Sketch:
    """The numbers of a row that is padded with NaN."""
    return row[~np.isnan(row)]


def _inputs(record: Record) -> Iterator[Sketch]:
    """For each step, the fingerprints of all tensors that all calls of all ranks get [tensors, 3]."""
    for rows in zip(*(rank["inputs"] for rank in record.ranks), strict=False):
        yield np.concatenate([_values(row).reshape(-1, 3) for row in rows])


def other_batches(found: Record, own: Record, floor: Record) -> str:
    """How the inputs of modules differ, if they do. Inputs that change with the weights, such as those
    that a generator passes to its critic, are not data: the gradients judge them."""
    for one, two, third in zip(found.ranks, own.ranks, floor.ranks, strict=True):
        mine, theirs, disturbed = one["inputs"], two["inputs"], third["inputs"]
        for step in range(min(len(mine), len(theirs), len(disturbed))):
            a, b, c = (_values(each[step]) for each in (mine, theirs, disturbed))
            counts = [f"{int(each[::3].sum()):,}" for each in (a, b)]
            if counts[0] != counts[1]:
                return f"the model gets {' numbers instead of '.join(counts)} in step {step + 1}"
            if a.shape != b.shape:
                return f"the model is called with different batches in step {step + 1}"
            data = b == c if b.shape == c.shape and floor is not found else np.ones(b.shape, bool)
            if not np.allclose(a[data], b[data], rtol=1e-6, atol=1e-9):
                return f"the model gets different numbers in step {step + 1}"
    return ""


def rounding_decides(disturbed: Record, own: Record) -> bool:
    """Whether a disturbed copy of a script gets other data. Results of other modules, such as the inputs
    of a predictor or a critic, are none: they differ from the first step on, and there by little."""
    for one, two in zip(disturbed.ranks, own.ranks, strict=True):
        data = np.zeros(0, bool)  # which inputs are equal in the first step
        for mine, theirs in zip(one["inputs"], two["inputs"], strict=False):
            a, b = (_values(each).reshape(-1, 3) for each in (mine, theirs))
            if a.shape != b.shape or (a[:, 0] != b[:, 0]).any():
                return True
            # The plain sum of normalized numbers is only rounding, the weighted one is not.
            size = np.abs(b[:, 1:]).max(1, initial=0.0)
            other = np.abs(a - b).max(1, initial=0.0) > 0.01 * size + 1e-9
            if (other[data] if len(data) == len(b) else other).any():
                return True
            if not len(data):
                data = (a == b).all(1)
    return False


def varied(own: Record) -> bool:
    """Whether one step has other inputs than another. Of data that are all alike, more or fewer rows give
    the same mean."""
    return len({_values(row).tobytes() for row in own.ranks[0]["inputs"]} - {b""}) > 1


def other_parts(found: Record, own: Record) -> str:
    """How the parts of a batch differ from the whole, if they do. Ranks and micro-batches must divide
    some of its tensors into equal parts that have the same sum as the whole. The changed script may also
    compute with the whole, and the original with parts. As many ranks may also divide it otherwise: the
    micro-batches then weigh their own losses."""
    as_many = len(found.ranks) == len(own.ranks)
    if as_many and _same_numbers(found, own):
        return ""
    for step, (parts, whole) in enumerate(zip(_inputs(found), _inputs(own), strict=False)):
        if len(parts) < len(whole):
            parts, whole = whole, parts
        if not len(parts):
            continue  # a step after the first ones, whose inputs are not recorded
        if not len(whole) or len(parts) % len(whole) or (as_many and len(parts) == len(whole)):
            return f"the model is called with different batches in step {step + 1}"
        parts = parts.reshape(-1, *whole.shape)
        total = parts.sum(0)
        shared = total[:, 0] == whole[:, 0]
        times = total[0, 0] / whole[0, 0]
        if not shared.any():
            return (
                f"ranks together get {times:.4g} times the batch in step {step + 1}; remedy: let "
                "the function give each rank its own rows, batch[rank::world_size]"
            )
        if not np.allclose(total[shared, 1], whole[shared, 1], rtol=1e-6, atol=1e-6):
            return f"ranks together get different numbers in step {step + 1}"
        if (parts[:, shared, 0] != parts[:1, shared, 0]).any():
            return (
                f"the ranks do not divide the batch of step {step + 1} into equal parts, so the mean "
                "of their gradients is not that of the batch; remedy: a batch that the devices divide"
            )
    return ""


def _same_numbers(found: Record, own: Record) -> bool:
    """Whether the calls of each step together get the same numbers, in any order and division. Tensors
    that are the same in each call, such as a mask, may come with more calls or fewer."""
    for both in zip(_inputs(found), _inputs(own), strict=False):
        # How many tensors a call gets is not recorded.
        if any(map(len, both)) and not any(
            _same_sums(*(each.reshape(-1, tensors, 3) for each in both))
            for tensors in range(1, min(map(len, both)) + 1)
            if not any(len(each) % tensors for each in both)
        ):
            return False
    return True


def _same_sums(one: Sketch, other: Sketch) -> bool:
    """Whether the tensors of all calls [calls, tensors, 3] have the same sums, or are the same in each."""
    mine, theirs = one.sum(0), other.sum(0)
    shared = mine[:, 0] == theirs[:, 0]
    constant = (np.concatenate([one, other]) == other[0]).all((0, 2))
    equal = np.isclose(mine[:, 1], theirs[:, 1], rtol=1e-6, atol=1e-6)
    return bool(shared.any() and np.where(shared, equal, constant).all())


def other_rates(found: Record, own: Record) -> str:
    """How dropout rates differ, if they do. They are recorded when dropout is off."""
    for one, two in zip(found.ranks, own.ranks, strict=True):
        mine, theirs = (each.get("rates", np.zeros(0)) for each in (one, two))
        if len(mine) and len(theirs) and not np.array_equal(mine, theirs):
            both = (" and ".join(f"{rate:g}" for rate in rates) for rates in (mine, theirs))
            return f"dropout at {' instead of '.join(both)}"
    return ""


def other_tensors(found: Record, own: Record) -> str:
    """How the sets of tensors with gradients or updates differ, unless some are replaced by others."""
    if replaced_tensors(found, own):
        return ""
    for kind in ("gradient", "update"):
        mine, theirs = {*found.of(kind)}, {*own.of(kind)}
        if lost := sorted({k[2] for k in theirs - mine}):
            return f"{some(lost)} get no {kind}"
        if new := sorted({k[2] for k in mine - theirs}):
            return f"{some(new)} get a {kind}, and none in the script"
    return ""


def replaced_tensors(found: Record, own: Record) -> str:
    """Which parameters take the place of others, such as one of the queries, keys and values together."""
    mine, theirs = ({k[2] for k in record.of("weight")} for record in (found, own))
    lost, new = sorted(theirs - mine), sorted(mine - theirs)
    if not lost or not new:
        return ""
    return (
        f"{some(new)} take the place of {some(lost)}: tensors that are joined or divided cannot be "
        "compared one by one"
    )


def some(names: list[str]) -> str:
    """The first two names, and the number of others."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
