"""Replaces a sample by another: results for the others must not change."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_core.audit.probes.probed_call import EXACT, OutOfTimeError, ProbedCall
from transformer_core.audit.probes.tokens import named, swapped
from transformer_core.audit.replay import Call, Result, gap
from transformer_core.tune.nested import mapped, tensors

NUDGE = 1e-6  # relative change of numbers that changes no decision
MIXED = (
    "",
    "look for an operation over the wrong axis: a softmax, a mean, a view instead of a transpose, a "
    "normalization over the batch",
)
"""End of the cause, and remedy, if a sample changes the results of others."""
APPENDED = (
    ": some of its features are statistics of the batch, the same for several samples",
    "keep it if it is intended, such as the deviation within a batch in a discriminator; otherwise look for a "
    "mean or a deviation over the wrong axis",
)
"""The same, if only a number of the batch among the features does so."""
DECIDED = (
    ", but not when its numbers change slightly: a choice for one sample leaves less room for another",
    "experts of limited capacity do this on purpose: give them room for all tokens in evaluation; otherwise "
    "look for a topk, sort or argmax over the wrong axis",
)
"""The same, if only decisions do so."""
MOVED = (
    ": the results of all others are there, but in other rows",
    "a model that sorts its samples, such as by length, must put the results back into their order, or sort "
    "the targets too",
)
"""The same, if rows only change places."""


def samples(probed: ProbedCall) -> None:
    """Replace one sample by another: predictions for the others must not change."""
    given = tensors((probed.call.args, probed.call.kwargs), floating=False)
    lead = next((t for t in given if t.dim() > (1 if not t.is_floating_point() else 2)), None)
    if lead is None:
        why = "no input has an axis of samples and one of places or pixels"
        probed.notes.cannot("samples", why if given else "the model's arguments are no tensors")
        return
    axes = [0] if lead.dim() > 3 else [0, 1]
    axes = [a for a in axes if lead.shape[a] > 1]
    # Targets, one for each sample, tell which axis is that of the samples.
    losses = [*probed.base.losses, *probed.outside]
    counts = {t.numel() for _, _, t in losses if isinstance(t, Tensor) and t.dim() == 1}
    if axes == [0, 1] and lead.shape[0] in counts and lead.shape[1] not in counts:
        axes = [0]
    square = any(t.dim() > 1 and t.shape[0] == t.shape[1] == lead.shape[0] for t in given)
    # Pairs of numbers of samples are the edges of a graph.
    edges = any(
        t.dim() == 2 and len(t) == 2 < len(lead) and t.shape[1] and int(t.max()) < len(lead)
        for t in given
        if t.dtype in (torch.int64, torch.int32)
    )
    if lead.shape[0] < 2 or square or edges:
        why = "the batch has one sample, as many places as samples, or edges between its samples"
        probed.notes.cannot("samples", why)
        return
    tried = [(_independent(probed, lead, axis), axis) for axis in axes]
    results = [(found, axis) for found, axis in tried if found is not None]
    if not results:
        why = "no result has one row for each sample"
        if any(t.dim() > 1 and t.shape[0] == t.shape[1] for t in probed.base.outputs):
            why += ", and a different number of columns"
        elif any(t.dim() == 2 and len(t) and not t.shape[1] % len(t) for t in probed.base.outputs):
            why += ", except for scores of pairs"
        probed.notes.cannot("samples", why)
        return
    same = min(results)[0] == 0.0
    moved = False if same or results[0][1] else _moved(probed, lead)
    if same or moved is None:
        how = f"one sample of {probed.name}'s batch replaced by another"
        if opaque := sorted({type(each).__name__ for each in _opaque(probed.call)}):
            how += f", but not in {', '.join(opaque)}, whose tensors are its attributes"
        probed.notes.holds("samples", how)
    elif results[0][1] == 0:
        probed.mixed = True
        where, appended = (probed.name, False) if moved else _first_mixed(probed, lead)
        decided = not appended and not moved and _is_decided(probed, lead)
        more, remedy = MOVED if moved else APPENDED if appended else DECIDED if decided else MIXED
        cause = f"a sample's result changes when another sample of the batch is replaced{more}"
        sure = not (appended or decided) and (not moved or bool(probed.outside))
        probed.notes.found("samples", where, cause, remedy, results[0][0], probed.still, sure=sure)


def _opaque(call: Call) -> list[Any]:
    """Arguments that keep tensors as attributes, where nothing replaces them, as a batch of padded images does."""
    return [
        each
        for each in named(call).values()
        if not tensors(each, floating=False)
        and tensors(getattr(each, "__dict__", 0), floating=False)
    ]


def _is_decided(probed: ProbedCall, lead: Tensor) -> bool:
    """Whether the first sample changes others only by a decision, such as the choice of an expert with
    room for few: another sample's numbers in its place change their results, slightly other numbers do
    not. False if that cannot be told, as in float32."""

    def swap(values: Tensor) -> Tensor:
        return values.index_copy(0, values.new_zeros(1, dtype=torch.int64), values[1:2])

    def nudge(values: Tensor) -> Tensor:
        return torch.cat([values[:1] * (1 + NUDGE), values[1:]])

    if not probed.double:
        return False
    changes = [_gap_of_others(probed, lead, change) for change in (swap, nudge)]
    return changes[0] > probed.still and changes[1] <= EXACT


def _gap_of_others(probed: ProbedCall, lead: Tensor, change: Callable[[Tensor], Tensor]) -> float:
    """The largest relative change of the other samples if the numbers of all are changed: those of
    ``lead``, or the embeddings of its tokens. Infinite if no embedding gets the tokens."""
    if lead.is_floating_point():
        new: Result | None = probed.again(args=swapped(probed.call, lead, change(lead)))
    else:
        new = probed.with_other_embeddings(lead, lambda _, output: change(output))
    if new is None:
        return math.inf
    pairs = zip(_rows(probed.base, lead, 0), _rows(new, lead, 0), strict=True)
    return max((gap(*_common(now[1:], old[1:])) for old, now in pairs), default=math.inf)


def _replaced(probed: ProbedCall, lead: Tensor, axis: int) -> Any:
    """The arguments with the second sample along an axis in place of the first."""
    size = lead.shape[axis]

    def change(tensor: Tensor) -> Tensor:
        if tensor.dim() <= axis or tensor.shape[axis] != size:
            return tensor
        changed = tensor.clone()
        changed.movedim(axis, 0)[0] = changed.movedim(axis, 0)[1]
        return changed

    return mapped((probed.call.args, probed.call.kwargs), change)


def _rows(result: Result, lead: Tensor, axis: int) -> list[Tensor]:
    """Results with one row for each sample along an axis."""
    count = lead.shape[axis]
    found = [
        t
        for t in result.outputs
        if t.dim() > max(1, axis) and t.shape[axis] == count and [*t.shape].count(count) == 1
    ]
    for _, logits, _ in result.losses:
        if axis == 0 and logits.dim() == 2 and logits.shape[0] % count == 0:
            found.append(logits.view(count, -1))
    return found


def _independent(probed: ProbedCall, lead: Tensor, axis: int) -> float | None:
    """Largest relative change of the other samples when one is replaced, 0 if it is only rounding;
    None if no result has one row for each sample."""
    new = probed.again(args=_replaced(probed, lead, axis))
    rows = (_rows(each, lead, axis) for each in (probed.base, new))
    pairs = [[t.movedim(axis, 0) for t in pair] for pair in zip(*rows, strict=True)]
    changes = [
        gap(*_common(now[1:], old[1:])) for old, now in pairs if not _scores(old, now, probed.still)
    ]
    if not changes:
        return None
    return max(changes) if max(changes) > probed.still else 0.0


def _scores(old: Tensor, now: Tensor, still: float) -> bool:
    """Whether only the columns of the replaced sample change: scores of each sample with all others."""
    count, columns = len(old), old[0].numel()
    if old.dim() != 2 or old.shape != now.shape or columns % count:
        return False
    changed = (now - old)[1:].abs().amax(0) > still * float(old.abs().max())
    places = changed.nonzero()
    one = not bool((places % count).any()) or int(places.max()) < columns // count
    return bool(changed.any()) and one


def _moved(probed: ProbedCall, lead: Tensor) -> bool | None:
    """Whether the results of the other samples are all there, but in other rows; None if the call also
    returns integers of each sample in the new order, or the order itself."""
    # Dropout leaves out the same places of each row, whichever sample has it.
    base = probed.again(evaluation=True)
    new = probed.again(evaluation=True, args=_replaced(probed, lead, 0))
    for old, now in zip(_rows(base, lead, 0), _rows(new, lead, 0), strict=True):
        old, now = (t.flatten(1).double() for t in _common(old, now))
        # Rows are recognized by one number each, since pairs of rows may be many.
        weights = torch.linspace(1, 2, old.shape[1], dtype=torch.float64, device=old.device)
        one, two = old @ weights, now @ weights
        near = (one[:, None] - two).abs() <= probed.still * float(old.norm(dim=1).max())
        if int((~near.any(1)).sum()) > 1:  # The first sample is no longer there.
            return False
    for old, now in zip(base.indices, new.indices, strict=True):
        if old.dim() and now.dim() and len(old) == len(now) == len(lead):
            order = torch.arange(len(old), device=old.device)
            if not torch.equal(old[1:], now[1:]) or torch.equal(old.sort(0).values, order):
                return None
    return True


def _first_mixed(probed: ProbedCall, lead: Tensor) -> tuple[str, bool]:
    """The innermost module whose results mix samples, and whether only a number of the batch among
    its features does so."""
    try:
        old = probed.again(inside=True)
        new = probed.again(inside=True, args=_replaced(probed, lead, 0))
    except OutOfTimeError:
        return probed.name, False
    for name, values in old.modules.items():
        for one, two in zip(values, new.modules.get(name, []), strict=False):
            rows = one.dim() > 1 and one.shape == two.shape and len(one) == len(lead)
            if rows and gap(two[1:], one[1:]) > probed.still:
                both = zip(old.inputs[name], new.inputs[name], strict=False)
                pairs = [(a, b) for a, b in both if a.dim() and b.dim()]
                appended = any(_is_appended(probed, *each, len(lead)) for each in pairs)
                where = probed.watcher.name_of(dict(probed.call.inner.named_modules())[name])
                mixed = any(gap(b[1:], a[1:]) > probed.still for a, b in pairs)
                return f"the input of {where}" if mixed else where, appended
    return probed.name, False


def _is_appended(probed: ProbedCall, old: Tensor, new: Tensor, count: int) -> bool:
    """Whether only some features of the other samples changed, and these are the same for several
    samples."""
    if old.shape != new.shape or old.dim() < 2 or len(old) != count:
        return False
    limit = probed.still * float(old.abs().max())
    changed = ((new - old)[1:].abs() > limit).movedim(1, 0).flatten(1).any(1)
    if not changed.any() or changed.all():
        return False
    _, counts = new[:, changed].flatten(1).unique(dim=0, return_counts=True)
    return int(counts.min()) > 1


def _common(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """The places that two results of the same samples have in common: without its longest sample, a batch has
    fewer."""
    if one.dim() != two.dim():
        return one, two
    sizes = map(min, one.shape[1:], two.shape[1:])
    there = (slice(None), *map(slice, sizes)) if one.dim() else ...
    return one[there], two[there]
