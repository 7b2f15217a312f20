"""Changes single tokens: predictions must depend on earlier ones only, and targets must be the next."""

import itertools

import torch
from torch import Tensor

from transformer_core.audit.probes.probed_call import ProbedCall
from transformer_core.audit.probes.tokens import (
    NO_LOSS,
    NO_TOKENS,
    OTHER_TARGETS,
    integers,
    shift_of,
    swapped,
)


def later(probed: ProbedCall) -> None:
    """Change one token: which predictions change, and where is their target? Tests the relations
    ``later`` and ``shift``."""
    places = integers(probed.call)
    pairs = probed.logits(probed.base)
    ways = itertools.product(range(len(pairs)), places, (1, 0))
    seen = [found for way in ways if (found := _aligned(probed, *way)) is not None]
    if not seen:
        why = NO_TOKENS if not places else OTHER_TARGETS if pairs else NO_LOSS
        probed.notes.cannot("later", why)
        probed.notes.cannot("shift", why)
        return
    probed.notes.holds("later", f"single tokens of {probed.name}'s input changed")
    probed.notes.holds("shift", "targets that are tokens of the input")
    if any(offset == 1 for offset, _ in seen):
        return
    offset, shift = seen[0]
    relation = "shift" if offset > 1 or shift == 0 else "later"
    if offset > 1:
        cause = (
            f"each target lies {offset} places after the last token that its prediction sees: "
            "the labels are shifted more than once"
        )
        remedy = "shift the targets in one place only: in the data or in the model"
    elif shift == 0:
        cause = "each prediction sees the very token that it has to predict: "
        cause += "the labels are not shifted"
        remedy = "shift the targets by one place"
    else:
        cause = "each prediction sees the token that it has to predict"
        cause += ", and later ones" if offset < 0 else ""
        remedy = "mask all later places in attention (is_causal=True)"
    probed.notes.found(relation, probed.name, cause, remedy, float(offset), 1.0)


def _aligned(probed: ProbedCall, number: int, tokens: Tensor, axis: int) -> tuple[int, int] | None:
    """The distance of a target from the last token that its prediction sees, and from the token
    at its own place; None if the targets are not tokens of this input."""
    logits, target = probed.logits(probed.base)[number]
    count = tokens.shape[1 - axis]

    def by_sample(values: Tensor) -> Tensor:
        """Rows of logits or targets as [samples, places, ...]."""
        if axis == 1:
            return values.reshape(count, -1, *values.shape[1:])
        return values.reshape(-1, count, *values.shape[1:]).transpose(0, 1)

    def rows(values: Tensor) -> Tensor:
        """Logits as [rows, classes]."""
        return values.transpose(1, 2).flatten(0, 1) if values.dim() == 3 else values

    rest = target.numel() % count
    plain = logits.dim() == 2 and len(logits) == target.numel() and not rest
    classes_second = logits.dim() == 3 and len(logits) == len(target)
    if not plain and not classes_second:
        return None
    line = tokens if axis == 1 else tokens.t()
    wanted = by_sample(target.reshape(-1))
    counts = ~probed.left_out(wanted)
    shift = shift_of(line, wanted)
    if shift is None:  # The end of a text may be a target without being a token of the input.
        shift = shift_of(line, wanted.masked_fill(~_before_ends(counts), -1))
    if shift is None:
        return None
    # If samples change each other, only what happens within one tells what it sees.
    only = int(counts.sum(1).argmax()) if probed.mixed else None
    if only is not None:
        counts &= (torch.arange(len(counts), device=counts.device) == only)[:, None]
    # Predictions without a target, such as those of a prefix, may see everything.
    length = line.shape[1]
    feels: list[int] = []
    both = False
    # Tokens that are changed, one at a time; also the second whose prediction counts, after a prefix.
    places = {max(1, length // 4), length // 2, max(1, length - 2)}
    after = int(counts.any(0).int().argmax())
    if 0 < after < length - 1:
        places.add(after + 1)
    # Without teacher forcing, predictions take the place of most tokens.
    spare = [place for place in range(1, length - 1) if place not in places][:6]
    for place in (*sorted(places), *spare):
        if feels and place in spare:
            break
        new = probed.again(
            args=swapped(probed.call, tokens, _other_token(tokens, place, axis, only))
        )
        old, now = (
            by_sample(rows(each))
            .masked_fill(~counts[..., None], 0)
            .movedim(1, 0)
            .flatten(1)
            .double()
            for each in (logits, probed.logits(new)[number][0])
        )
        size = max(float(old.norm()) / max(1.0, len(old) ** 0.5), 1e-30)
        changed = [bool(d > probed.still * size) for d in (old - now).norm(dim=1)]
        if not any(changed):
            continue
        first = changed.index(True)
        if first > place and not counts[:, place].any():
            continue
        both |= first + shift < place
        feels.append(first - place)
    if not feels:
        return None
    # A prediction sees the tokens up to its own place minus this delay.
    delay = min(feels)
    if both and shift == 0:
        return 1, 0  # An autoencoder or a masked model may see everything.
    return shift + delay, shift


def _other_token(tokens: Tensor, place: int, axis: int, only: int | None = None) -> Tensor:
    """The tokens, with another one at a place in each sample, or in one of them ``only``."""
    changed = tokens.clone()
    line = changed.movedim(axis, 0)
    values = tokens.unique()
    index = torch.searchsorted(values, line[place].contiguous())
    new = values[(index + 1) % len(values)]
    if only is None:
        line[place] = new
    else:
        line[place, only] = new[only]
    return changed


def _before_ends(counts: Tensor) -> Tensor:
    """The targets that count, but for the last one of each row."""
    return counts & (counts.flip(1).cumsum(1).flip(1) > 1)
