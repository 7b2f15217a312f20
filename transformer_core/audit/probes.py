"""Probes: repeats the model's calls of one step with changes that must not, or must, matter."""

import inspect
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from transformer_core.audit.relations import NO_TIME, OF_CALLS, Notes
from transformer_core.audit.replay import Call, Result, again, evaluating, gap, refused
from transformer_core.audit.watcher import Watcher
from transformer_core.tune.causes import some
from transformer_core.tune.nested import mapped, tensors

LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.06, torch.float16: 0.01}
"""Relative errors of a module's result that its format explains, whatever the measured floor."""
MARGIN = 8.0  # a difference beyond this multiple of the measured floor is not rounding
MOST_ARGUMENTS = 6
NUDGE = 1e-6  # relative change of numbers that changes no decision
EXACT = 1e-13  # relative differences up to this one are rounding of 64 bits alone
MIXED = (
    "",
    "look for an operation over the wrong axis: a softmax, a mean, a view instead of a transpose, a "
    "normalization over the batch",
)
"""End of the cause, and remedy, if a sample changes the results of others."""
APPENDED = (
    ": some of its features are a number of the batch, the same for several samples",
    "keep it if it is meant, such as the deviation within a batch in a discriminator; otherwise look for a "
    "mean or a deviation over the wrong axis",
)
"""The same, if only a number of the batch among the features does so."""
SOMETIMES = (
    ", but not when its numbers change slightly: what is decided for one leaves less for another"
)
ROOM = "experts with room for few tokens do this on purpose: give them room for all in evaluation"
DECIDED = SOMETIMES, f"{ROOM}; or look for a topk, sort or argmax over the wrong axis"
"""The same, if only decisions do so."""
MATCH = 0.98
"""Targets are the tokens at an offset if at least this share of them are equal."""


_OF_LOSSES = re.compile(r"loss|label|target|(^|_)lm_|completion|response|action")


class _OutOfTimeError(Exception):
    """The time for repeated calls is over."""


class Probes:
    """Probes of one call, until ``end``, a time of ``time.monotonic``. Findings go to ``notes``."""

    def __init__(
        self,
        call: Call,
        watcher: Watcher,
        outside: list[tuple[str, Tensor, Any]],
        end: float = math.inf,
    ) -> None:
        self.call, self.watcher, self.notes, self.end = call, watcher, watcher.found, end
        self.outside = outside
        """Losses that the script computed from the results of the call."""
        self.name = type(call.inner).__name__
        self.double = True
        # By name, as a handwritten one is no class of torch. A model of Keras does not know its layers,
        # but gets an argument in place of a mode.
        *_, mode_given = evaluating(call.inner, call.args, call.kwargs)
        self.evaluation = mode_given or any(
            "BatchNorm" in each.__name__ for p in call.inner.modules() for each in type(p).__mro__
        )
        self.base: Result  # of the call as it was
        self.mixed = False  # whether a sample changes the results of others
        self.decided = False  # whether it does so only by decisions

    def run(self) -> None:
        """Run all probes."""
        for self.double in (True, False):
            try:
                self.base = self._again(graded=True)
                break
            except Exception as error:
                why = _why(error)
        else:
            for relation in OF_CALLS:
                self.notes.cannot(relation, why)
            return
        probed = (
            self.samples,
            self.later,
            self.padding,
            self.documents,
            self.inputs,
            self.precision,
        )
        for probe in probed:
            try:
                probe()
            except Exception as error:
                self.notes.cannot(probe.__name__, _why(error))
                if probe == self.later:
                    self.notes.cannot("shift", _why(error))

    def _again(self, **changes: Any) -> Result:
        changes.setdefault("evaluation", self.evaluation)
        changes.setdefault("double", self.double)
        if time.monotonic() > self.end:
            raise _OutOfTimeError
        return again(self.call, self.watcher, **changes)

    @property
    def still(self) -> float:
        """Relative differences of at most this size are only rounding."""
        return 1e-9 if self.double else 1e-4

    # -- other samples -------------------------------------------------------------------------

    def samples(self) -> None:
        """Replace one sample by another: predictions for the others must not change."""
        given = tensors((self.call.args, self.call.kwargs), floating=False)
        lead = next((t for t in given if t.dim() > (1 if not t.is_floating_point() else 2)), None)
        if lead is None:
            self.notes.cannot("samples", "no input has samples and places, or pixels")
            return
        axes = [0] if lead.dim() > 3 else [0, 1]
        axes = [a for a in axes if lead.shape[a] > 1]
        # Targets, one for each sample, tell which axis is that of the samples.
        losses = [*self.base.losses, *self.outside]
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
            why = "the batch has one sample, or a matrix or edges over its samples"
            self.notes.cannot("samples", why)
            return
        tried = [(self._independent(lead, axis), axis) for axis in axes]
        results = [(found, axis) for found, axis in tried if found is not None]
        if not results:
            why = "no result has one row for each sample"
            if any(t.dim() > 1 and t.shape[0] == t.shape[1] for t in self.base.outputs):
                why += ", and another number of columns"
            self.notes.cannot("samples", why)
            return
        if min(results)[0] == 0.0:
            self.notes.holds("samples", f"one sample of {self.name}'s batch replaced by another")
        elif results[0][1] == 0:
            self.mixed = True
            where, appended = self._first_mixed(lead)
            self.decided = not appended and self._is_decided(lead)
            more, remedy = APPENDED if appended else DECIDED if self.decided else MIXED
            cause = f"a sample's result changes when another sample of the batch is replaced{more}"
            sure = not (appended or self.decided)
            self.notes.found("samples", where, cause, remedy, results[0][0], self.still, sure=sure)

    def _is_decided(self, lead: Tensor) -> bool:
        """Whether the first sample changes others only by a decision, such as the choice of an expert with
        room for few: another sample's numbers in its place change their results, slightly other numbers do
        not. False if that cannot be told, as in float32."""

        def swap(values: Tensor) -> Tensor:
            return values.index_copy(0, values.new_zeros(1, dtype=torch.int64), values[1:2])

        def nudge(values: Tensor) -> Tensor:
            return torch.cat([values[:1] * (1 + NUDGE), values[1:]])

        if not self.double:
            return False
        changes = [self._gap_of_others(lead, change) for change in (swap, nudge)]
        return changes[0] > self.still and changes[1] <= EXACT

    def _gap_of_others(self, lead: Tensor, change: Callable[[Tensor], Tensor]) -> float:
        """The largest relative change of the other samples if the numbers of all are changed: those of
        ``lead``, or the embeddings of its tokens. Infinite if no embedding gets the tokens."""
        new = self._with_other_numbers(lead, change)
        if new is None:
            return math.inf
        pairs = zip(self._rows(self.base, lead, 0), self._rows(new, lead, 0), strict=True)
        return max((gap(*_common(now[1:], old[1:])) for old, now in pairs), default=math.inf)

    def _with_other_numbers(
        self, lead: Tensor, change: Callable[[Tensor], Tensor]
    ) -> Result | None:
        """The result with changed numbers of one argument, or changed embeddings of its tokens; None if no
        embedding gets them."""
        if lead.is_floating_point():
            return self._again(args=_swapped(self.call, lead, change(lead)))
        return self._with_other_embeddings(lead, lambda _, output: change(output))

    def _with_other_embeddings(
        self, tokens: Tensor, change: Callable[[nn.Embedding, Tensor], Tensor]
    ) -> Result | None:
        """The result if ``change`` takes the place of what each embedding of these tokens returns; None if
        no embedding gets them."""
        heard = False

        def replace(part: nn.Embedding, args: Any, output: Tensor) -> Tensor | None:
            nonlocal heard
            if not args or args[0].shape != tokens.shape or not torch.equal(args[0], tokens):
                return None
            heard = True
            return change(part, output)

        parts = [part for part in self.call.inner.modules() if type(part) is nn.Embedding]
        handles = [part.register_forward_hook(replace) for part in parts]
        try:
            new = self._again()
        finally:
            for handle in handles:
                handle.remove()
        return new if heard else None

    def _replaced(self, lead: Tensor, axis: int) -> Any:
        size = lead.shape[axis]

        def change(tensor: Tensor) -> Tensor:
            if tensor.dim() <= axis or tensor.shape[axis] != size:
                return tensor
            changed = tensor.clone()
            changed.movedim(axis, 0)[0] = changed.movedim(axis, 0)[1]
            return changed

        return mapped((self.call.args, self.call.kwargs), change)

    def _rows(self, result: Result, lead: Tensor, axis: int) -> list[Tensor]:
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

    def _independent(self, lead: Tensor, axis: int) -> float | None:
        """Largest relative change of the other samples when one is replaced, 0 if it is only rounding;
        None if no result has one row for each sample."""
        new = self._again(args=self._replaced(lead, axis))
        before, after = (self._rows(each, lead, axis) for each in (self.base, new))
        pairs = zip(before, after, strict=True)
        others = [[t.movedim(axis, 0)[1:] for t in pair] for pair in pairs]
        changes = [gap(*_common(now, old)) for old, now in others]
        if not changes:
            return None
        return max(changes) if max(changes) > self.still else 0.0

    def _first_mixed(self, lead: Tensor) -> tuple[str, bool]:
        """The innermost module whose results mix samples, and whether only a number of the batch among
        its features does so."""
        try:
            old = self._again(inside=True)
            new = self._again(inside=True, args=self._replaced(lead, 0))
        except _OutOfTimeError:
            return self.name, False
        for name, values in old.modules.items():
            for one, two in zip(values, new.modules.get(name, []), strict=False):
                rows = one.dim() > 1 and one.shape == two.shape and len(one) == len(lead)
                if rows and gap(two[1:], one[1:]) > self.still:
                    pairs = zip(old.inputs[name], new.inputs[name], strict=False)
                    appended = any(self._is_appended(*each, len(lead)) for each in pairs)
                    where = self.watcher.name_of(dict(self.call.inner.named_modules())[name])
                    return where, appended
        return self.name, False

    def _is_appended(self, old: Tensor, new: Tensor, count: int) -> bool:
        """Whether only some features of the other samples changed, and these are the same for several
        samples."""
        if old.shape != new.shape or old.dim() < 2 or len(old) != count:
            return False
        limit = self.still * float(old.abs().max())
        changed = ((new - old)[1:].abs() > limit).movedim(1, 0).flatten(1).any(1)
        if not changed.any() or changed.all():
            return False
        _, counts = new[:, changed].flatten(1).unique(dim=0, return_counts=True)
        return int(counts.min()) > 1

    # -- tokens --------------------------------------------------------------------------------

    def _logits(self, result: Result) -> list[tuple[Tensor, Tensor]]:
        """Logits and targets of each loss: those inside the call, and those that the script took
        from its results."""
        found = [
            (logits, target)
            for _, logits, target in result.losses
            if isinstance(target, Tensor) and not target.is_floating_point()
        ]
        for _, logits, target in self.outside:
            if not isinstance(target, Tensor) or target.is_floating_point():
                continue
            for before, now in zip(self.base.outputs, result.outputs, strict=True):
                cut = _cut(before, logits)
                if cut is not None:
                    found.append((cut(now), target))
                    break
        return found

    def later(self) -> None:
        """Change one token: which predictions change, and where is their target? Tests the relations
        ``later`` and ``shift``."""
        places = _integers(self.call)
        pairs = self._logits(self.base)
        ways = itertools.product(range(len(pairs)), places, (1, 0))
        found = {way: found for way in ways if (found := self._aligned(*way)) is not None}
        seen = [*found.values()]
        if not seen:
            why = "the targets are not tokens of the input, or too few of them count"
            if not places or not pairs:
                why = "no loss of the tokens is seen" if places else "no input has integer tokens"
            self.notes.cannot("later", why)
            self.notes.cannot("shift", why)
            return
        self.notes.holds("later", f"single tokens of {self.name}'s input changed")
        self.notes.holds("shift", "targets that are tokens of the input")
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
        decided = False
        if relation == "later" and self.decided:
            slight = self._aligned(*next(iter(found)), slightly=True)
            decided = slight is not None and slight[0] >= 1
        if decided:
            cause, remedy = cause + SOMETIMES, ROOM
        self.notes.found(relation, self.name, cause, remedy, float(offset), 1.0, sure=not decided)

    def _aligned(
        self, number: int, tokens: Tensor, axis: int, slightly: bool = False
    ) -> tuple[int, int] | None:
        """The distance of a target from the last token that its prediction sees, and from the token
        at its own place; None if the targets are not tokens of this input. With ``slightly``, tokens stay and
        their embeddings change."""
        logits, target = self._logits(self.base)[number]
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
        counts = ~self._left_out(wanted)
        shift = _shift(line, wanted)
        if shift is None:  # The end of a text may be a target without being a token of the input.
            shift = _shift(line, wanted.masked_fill(~_before_ends(counts), -1))
        if shift is None:
            return None
        # If samples change each other, only what happens within one tells what it sees.
        only = int(counts.sum(1).argmax()) if self.mixed else None
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
        for place in sorted(places):
            new = self._again(
                args=_swapped(self.call, tokens, _other_token(tokens, place, axis, only))
            )
            old, now = (
                by_sample(rows(each))
                .masked_fill(~counts[..., None], 0)
                .movedim(1, 0)
                .flatten(1)
                .double()
                for each in (logits, self._logits(new)[number][0])
            )
            size = max(float(old.norm()) / max(1.0, len(old) ** 0.5), 1e-30)
            least = EXACT if slightly else self.still
            changed = [bool(d > least * size) for d in (old - now).norm(dim=1)]
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

    def padding(self) -> None:
        """Change tokens under the padding: no other prediction may change, and none may count."""
        why = "no padding is seen: no mask and no padding index"
        for tokens in _integers(self.call):
            hidden, masked = _padded(self.call, tokens)
            if hidden is None or not bool(hidden.any()) or bool(hidden.all()):
                continue
            values = tokens[~hidden]
            changed = tokens.clone()
            changed[hidden] = values[
                torch.arange(int(hidden.sum()), device=values.device) % len(values)
            ]
            if bool((changed == tokens).all()):
                continue
            compared = False
            new = self._with_other_padding(tokens, hidden, changed)
            for old, now, target, length in self._rows_of_tokens(tokens, new):
                compared = True
                # A prediction for the whole row has no place under the padding.
                real = ~hidden[:, :length].reshape(-1) | (length == 1)
                if masked:  # Otherwise, a changed token is no padding any more.
                    self._same(
                        "padding",
                        old[real],
                        now[real],
                        "predictions of real tokens change with the tokens under the padding",
                        "pass the padding mask to attention, and leave padding out of means",
                    )
                self._counted_padding(tokens, hidden, target)
                self._lost_ends(tokens, hidden, target)
            if masked and _at_an_end(tokens, hidden):
                self._reached_padding(tokens, hidden)
                compared = compared or self._whole_rows(tokens, new)
                self._wider(tokens, hidden)
            if compared:
                how = "tokens under the padding changed" if masked else "targets under the padding"
                self.notes.holds("padding", how)
                return
            why = "no loss of the tokens is seen"
        self.notes.cannot("padding", why)

    def _with_other_padding(self, tokens: Tensor, hidden: Tensor, changed: Tensor) -> Result:
        """The result with the embeddings of the tokens ``changed`` in hidden places. The tokens stay, because
        a model may find the padding, and so the last real token, by its token. If no embedding gets them,
        they are replaced."""

        def hide(part: nn.Embedding, output: Tensor) -> Tensor:
            return torch.where(hidden[..., None], part.weight[changed].to(output), output)

        new = self._with_other_embeddings(tokens, hide)
        return new or self._again(args=_swapped(self.call, tokens, changed))

    def _wider(self, tokens: Tensor, hidden: Tensor) -> None:
        """Pad the batch by one more column: no prediction may change."""
        given = tensors((self.call.args, self.call.kwargs), floating=False)
        length = tokens.shape[1]
        shaped = [t for t in given if t.shape == tokens.shape]
        others = any(length in t.shape for t in given if t.shape != tokens.shape)
        if others or any(len(t[hidden].unique()) > 1 for t in shaped):
            return  # a mask of pairs of places, or values that have no natural continuation
        left = bool(hidden[:, 0].any())

        def pad(tensor: Tensor) -> Tensor:
            if tensor.shape != tokens.shape:
                return tensor
            more = tensor[hidden][:1].expand(len(tensor), 1)
            return torch.cat([more, tensor] if left else [tensor, more], 1)

        try:
            base = self._again(evaluation=True)
            new = self._again(evaluation=True, args=mapped((self.call.args, self.call.kwargs), pad))
        except _OutOfTimeError:
            raise
        except Exception:
            return  # There may be no further place.
        for old, now in zip(base.outputs, new.outputs, strict=True):
            if old.dim() > 1 and old.shape[:2] == tokens.shape and now.dim() == old.dim():
                now = now[:, 1:] if left else now[:, :length]
                if now.shape == old.shape:
                    old, now = old[~hidden], now[~hidden]
            elif old.shape != now.shape or old.shape[:1] != tokens.shape[:1]:
                continue
            if (change := gap(now, old)) > self.still:
                self.notes.found(
                    "padding",
                    self.name,
                    "predictions change when the batch is padded by one more column on the "
                    + (
                        "left: positions or a recurrence may count the padding" if left else "right"
                    ),
                    "count positions from the first real token, or pad on the right"
                    if left
                    else "leave padding out of means, maxima and normalizations",
                    change,
                    self.still,
                    sure=not left,
                )

    def _whole_rows(self, tokens: Tensor, new: Result) -> bool:
        """Compares results for whole rows, such as scores; False if there are none."""
        found = False
        for old, now in zip(self.base.outputs, new.outputs, strict=True):
            each = old.shape[:1] == tokens.shape[:1] and tokens.shape[1] not in old.shape[1:]
            if each and old.is_floating_point():
                found = True
                self._same(
                    "padding",
                    old,
                    now,
                    "results for whole rows change with the tokens under the padding",
                    "read them at the last real token, and leave padding out of attention and means",
                )
        return found

    def _reached_padding(self, tokens: Tensor, hidden: Tensor) -> None:
        """Notes places under the padding that any loss, also a handwritten one, counts."""
        texts = [n for n, t in _bound(self.call).items() if _is_tokens(n, t) and "label" not in n]
        config = getattr(self.call.inner, "config", None)
        if len(texts) > 1 or getattr(config, "is_encoder_decoder", False):
            return  # The places of the result may be those of another text.
        within = hidden.clone()
        within[:, :-1] &= hidden[:, 1:]  # The last place before a text may predict its first token.
        for touched in self.call.touched:
            if touched.shape == tokens.shape and (count := int((touched & within).sum())):
                self.notes.found(
                    "padding",
                    f"the targets of {self.name}",
                    f"{count} places under the padding get a gradient: they count in the loss",
                    "leave the places under the padding out of the loss",
                    float(count),
                    0.0,
                )

    def _left_out(self, targets: Tensor) -> Tensor:
        """Which of the targets the loss ignores."""
        return torch.isin(targets, targets.new_tensor([*self.watcher.losses.ignored] or [-100]))

    def _counted_padding(self, tokens: Tensor, hidden: Tensor, target: Tensor) -> None:
        if (found := _aligned(tokens, target)) is None:
            return
        wanted, there = found
        under = hidden[:, there]
        # A mask may leave out rows of a loss without reduction, inside the call or outside.
        known = self.base.counted.get(id(target))
        if known is not None and known.numel() == target.numel():
            under = under & known.view(len(tokens), -1)[:, : wanted.shape[1]]
        elif touched := [t for t in self.call.touched if t.shape == tokens.shape]:
            under = under & torch.stack(touched).any(0)[:, : wanted.shape[1]]
        counted = wanted[under] == tokens[:, there][under]
        counted &= ~self._left_out(wanted[under])
        if counted.numel() and bool(counted.any()):
            self.notes.found(
                "padding",
                f"the targets of {self.name}",
                f"{int(counted.sum())} places under the padding count in the loss",
                "set the targets under the padding to -100 (ignore_index)",
                float(counted.sum()),
                0.0,
            )

    def _lost_ends(self, tokens: Tensor, hidden: Tensor, target: Tensor) -> None:
        """Notes a token that ends texts and is never a target, because it is the padding too."""
        if (found := _aligned(tokens, target)) is None:
            return
        wanted, there = found
        counts = ~self._left_out(wanted)
        pads = tokens[hidden].unique()
        twins = (~hidden & (tokens == pads[0]))[:, there]
        ends = twins[:, 1:] & counts[:, :-1]
        if len(pads) == 1 and bool(ends.any()) and not bool((twins & counts).any()):
            self.notes.found(
                "padding",
                f"the targets of {self.name}",
                f"token {int(pads[0])} is padding and also ends {int(ends.sum())} texts, where it is no "
                "target either: the model never learns to end one",
                "choose the targets that are left out by the mask, or give padding another number",
                sure=False,
            )

    def documents(self) -> None:
        """Change the first document of a packed row: predictions for the others must not change."""
        found = _documents(_bound(self.call))
        tokens = next(iter(_integers(self.call)), None)
        if found is None or tokens is None or found.shape != tokens.shape:
            self.notes.cannot("documents", "no packed rows are seen: no positions that restart")
            return
        parts = dict(self.call.inner.named_modules())
        for name, inputs in self._again(inside=True).inputs.items():
            if isinstance(parts[name], nn.Embedding) and any(torch.equal(t, found) for t in inputs):
                self.notes.cannot("documents", "segments are embedded: parts of one text")
                return
        first = found == found[:, :1]
        values = tokens.flatten()
        changed = torch.where(first, values[torch.randperm(len(values))].view_as(tokens), tokens)
        new = self._again(args=_swapped(self.call, tokens, changed))
        for old, now, _, length in self._rows_of_tokens(tokens, new):
            others = ~first[:, :length].reshape(-1)
            self.notes.holds("documents", "the first document of each packed row changed")
            self._same(
                "documents",
                old[others],
                now[others],
                "predictions of one document change with another document of its row",
                "let attention see only the tokens of its own document: a block mask, or "
                "variable lengths",
            )

    def _rows_of_tokens(
        self, tokens: Tensor, new: Result
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """Of each loss with predictions for the places of ``tokens``: the logits before and after a
        change, the targets, and the places of a row."""
        for (old, target), (now, _) in zip(self._logits(self.base), self._logits(new), strict=True):
            if old.dim() == 2:
                length, rest = divmod(len(old), len(tokens))
                if not rest and 0 < length <= tokens.shape[1]:
                    yield old, now, target, length

    def _same(self, relation: str, old: Tensor, now: Tensor, cause: str, remedy: str) -> None:
        """Notes predictions that are not the same before and after a change."""
        if (change := gap(now, old)) > self.still:
            self.notes.found(relation, self.name, cause, remedy, change, self.still)

    def inputs(self) -> None:
        """Exchange one argument's values between samples, or places: the result must change."""
        try:
            signature = inspect.signature(self.call.inner.forward)
            bound = signature.bind(*self.call.args, **self.call.kwargs).arguments
        except (TypeError, ValueError):
            bound = {}
        own = {n: t for n, t in bound.items() if isinstance(t, Tensor) and not _is_passed_on(n)}
        own = {n: t for n, t in own.items() if t.layout == torch.strided and not t.is_nested}
        tested = 0
        for name, value in [*own.items()][:MOST_ARGUMENTS]:
            axes = [n for n in (0, -1) if value.dim() and not torch.equal(value.roll(1, n), value)]
            if not axes:
                continue
            try:
                changed = value.detach().roll(1, axes[0])
                new = self._again(args=_swapped(self.call, value, changed))
            except _OutOfTimeError:
                raise
            except Exception:
                continue  # such as lengths that must be sorted
            tested += 1
            old, now = (
                [*r.outputs, *tensors([given for _, *given in r.losses], floating=False)]
                for r in (self.base, new)
            )
            pairs = [*zip(old, now, strict=True)]
            if pairs and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
                self.notes.found(
                    "inputs",
                    f"{name} of {self.name}",
                    "nothing depends on it: the result stays the same when its values change places",
                    "use it, or do not pass it; a layer between may not hand it on",
                    sure=False,
                )
        if tested:
            self.notes.holds(
                "inputs", f"{tested} argument{'s' * (tested != 1)} of {self.name} changed"
            )
        else:
            self.notes.cannot("inputs", "no named argument has values that can change places")

    # -- 64 bits -------------------------------------------------------------------------------

    def precision(self) -> None:
        """Compare each module's result in its own format with that in 64 bits."""
        if not self.double:
            self.notes.cannot("precision", "the model does not run in 64 bits")
            return
        # Random numbers are others in 64 bits: those of dropout, of added noise, of sampled weights.
        evaluation = self.evaluation or self.base.drew
        if self._again(double=False, evaluation=evaluation).drew:
            self.notes.cannot("precision", "the model draws random numbers in evaluation mode, too")
            return
        formats = {p.dtype for p in self.call.inner.parameters() if p.is_floating_point()}
        formats |= {self.call.autocast} if self.call.autocast else set()
        coarse = max(formats, key=lambda f: torch.finfo(f).eps)
        own = self._again(double=False, inside=True, evaluation=evaluation)
        exact = self._again(inside=True, evaluation=evaluation)
        moved = self._again(inside=True, evaluation=evaluation, disturb=torch.finfo(coarse).eps)
        parts = dict(self.call.inner.named_modules())
        count = len(exact.modules)
        self.notes.holds("precision", f"{count} module{'s' * (count != 1)} of {self.name}")
        limit = LIMIT.get(coarse, 1e-4)
        for name, values in exact.modules.items():
            mine, other = own.modules.get(name, []), moved.modules.get(name, [])
            if not len(mine) == len(values) == len(other):
                continue
            gaps = [gap(m, v) for m, v in zip(mine, values, strict=True)]
            floors = [gap(o, v) for o, v in zip(other, values, strict=True)]
            before = zip(own.inputs.get(name, []), exact.inputs.get(name, []), strict=False)
            entering = max((gap(m, v) for m, v in before), default=0.0)
            for size, floor in zip(gaps, floors, strict=True):
                allowed = max(limit, MARGIN * floor, MARGIN * entering)
                if size > allowed and torch.isfinite(torch.tensor(floor)):
                    self.notes.found(
                        "precision",
                        self.watcher.name_of(parts[name]),
                        f"its result is {size:.1e} off that of the same code in 64 bits, and "
                        f"{str(coarse).removeprefix('torch.')} explains {allowed:.1e}",
                        "compute angles, normalizations, softmax and sums in float32",
                        size,
                        allowed,
                    )
                    return


def _why(error: Exception) -> str:
    return NO_TIME if isinstance(error, _OutOfTimeError) else refused(error)


def detached(
    calls: list[Call], watcher: Watcher, suspects: dict[int, str], notes: Notes, end: float
) -> None:
    """Notes trainable tensors without a gradient if their change changes the inputs of the loss. Tensors
    for which no time is left by ``end`` are not tested."""
    wrong: list[str] = []
    for call in calls:
        mine = [p for p in call.inner.parameters() if id(p) in suspects]
        if not mine or time.monotonic() > end:
            continue
        try:
            base = again(call, watcher)
        except Exception:
            continue
        for parameter in mine[:32]:
            if time.monotonic() > end:
                break
            values = parameter.data.clone()
            scale = float(values.float().std()) if values.numel() > 1 else 0.0
            generator = torch.Generator().manual_seed(1)
            noise = torch.randn(values.shape, generator=generator).to(values)
            change = {id(parameter): values + 0.1 * max(scale, 0.01) * noise}
            new = again(call, watcher, change=change)
            used = [n for n in range(len(base.outputs)) if n in call.used]
            if any(gap(new.outputs[n], base.outputs[n]) > 1e-6 for n in used):
                wrong.append(suspects[id(parameter)])
    for names in _by_module(wrong).values():
        notes.found(
            "trained",
            some(names),
            "it changes the result of the model but gets no gradient: its part is detached from "
            "the loss",
            "look for detach(), .data, no_grad() or a checkpoint without an input that "
            "requires gradients; or set requires_grad to False",
        )


def _by_module(names: list[str]) -> dict[str, list[str]]:
    """Names of tensors, grouped by their layer in a list or their outermost module."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = next((n for n, p in enumerate(parts) if p.isdigit()), 0)
        found.setdefault(".".join(parts[: cut + 1]), []).append(name)
    return found


def _bound(call: Call) -> dict[str, Any]:
    """Arguments of a call by name, with those in dictionaries."""
    try:
        bound = inspect.signature(call.inner.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return dict(call.kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        found |= value if isinstance(value, dict) else {name: value}
    return found


def _integers(call: Call) -> list[Tensor]:
    """The tokens among the inputs: integers with two axes, the second longer than 1."""
    return [value for name, value in _bound(call).items() if _is_tokens(name, value)]


def _is_tokens(name: str, value: Any) -> bool:
    skipped = ("mask", "position", "segment", "type", "document", "seq_idx")
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int64, torch.int32)
        and value.dim() == 2
        and value.shape[1] > 1
        and not any(word in name.lower() for word in skipped)
    )


def _is_passed_on(name: str) -> bool:
    """Whether an argument may go through a model without effect: targets and numbers of samples."""
    return any(word in name.lower() for word in ("label", "target", "idx", "index"))


def _at_an_end(tokens: Tensor, hidden: Tensor) -> bool:
    """Whether hidden places hold one token, at the ends or at the beginnings of rows: that is padding.
    Elsewhere, a mask may mean something else: prompts, or words to predict."""
    after, before = hidden.cummax(1).values, hidden.flip(1).cummax(1).values.flip(1)
    ends = torch.equal(hidden, after) or torch.equal(hidden, before)
    return ends and len(tokens[hidden].unique()) == 1


def _padded(call: Call, tokens: Tensor) -> tuple[Tensor | None, bool]:
    """Whether each token is padding, or None if unknown; and whether a mask says so instead of a padding
    index."""
    for name, value in _bound(call).items():
        shaped = isinstance(value, Tensor) and value.shape == tokens.shape
        # One for the loss says which targets count, not which tokens are there.
        if not shaped or "mask" not in name.lower() or _OF_LOSSES.search(name.lower()):
            continue
        if value.dtype == torch.bool:
            return (value if "pad" in name.lower() else ~value), True
        if bool(((value == 0) | (value == 1)).all()):
            return value == 0, True
    for part in call.inner.modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return tokens == part.padding_idx, False
    return None, False


def _documents(given: dict[str, Any]) -> Tensor | None:
    """The document of each token of a packed row, as a number; None if rows are not packed."""
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.dim() != 2 or value.is_floating_point():
            continue
        lower = name.lower()
        if any(word in lower for word in ("document", "doc_id", "segment", "seq_idx")):
            if bool((value != value[:, :1]).any()):
                return value
        elif "position" in lower or lower in ("pos", "places"):
            begins = value == 0
            if bool((begins.sum(1) > 1).any()):
                return begins.cumsum(1)
    return None


def _common(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """The places [samples, places, ...] that two results have in common: without its longest sample, a batch
    has fewer."""
    if one.dim() != two.dim() or one.dim() < 2 or one.shape[2:] != two.shape[2:]:
        return one, two
    length = min(one.shape[1], two.shape[1])
    return one[:, :length], two[:, :length]


def _swapped(call: Call, old: Tensor, new: Tensor) -> Any:
    return mapped((call.args, call.kwargs), lambda t: new if t is old else t)


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


def _aligned(tokens: Tensor, target: Tensor) -> tuple[Tensor, slice] | None:
    """The targets [batch, n] that are tokens of the rows, and the places of these tokens; None if the
    targets are others."""
    wanted = target.reshape(tokens.shape[0], -1)
    shift = _shift(tokens, wanted)
    if shift is None:
        return None
    length = min(tokens.shape[1] - shift, wanted.shape[1])
    return wanted[:, :length], slice(shift, shift + length)


def _shift(line: Tensor, wanted: Tensor) -> int | None:
    """The offset of the targets in the tokens: wanted[:, i] = line[:, i + offset]. None if there is
    none."""
    shares: dict[int, float] = {}
    for shift in range(4):
        length = min(line.shape[1] - shift, wanted.shape[1])
        if length < 2:
            continue
        target, tokens = wanted[:, :length], line[:, shift : shift + length]
        counted = target >= 0
        if int(counted.sum()) >= 8:
            shares[shift] = float((target == tokens)[counted].float().mean())
    if not shares:
        return None
    best = max(shares, key=lambda s: shares[s])
    others = [share for shift, share in shares.items() if shift != best]
    if shares[best] < MATCH or max(others, default=0.0) > 0.9:
        return None
    return best


def _before_ends(counts: Tensor) -> Tensor:
    """The targets that count, but for the last one of each row."""
    return counts & (counts.flip(1).cumsum(1).flip(1) > 1)


def _cut(whole: Tensor, part: Tensor) -> Callable[[Tensor], Tensor] | None:
    """How the script took logits from a result: all of it, or all but some places at its beginning or
    end; as rows of classes. None if it did neither."""
    if whole.dim() < 2 or not part.numel():
        return None
    if whole.dim() == 2:
        if whole.shape == part.shape and gap(whole, part) < 0.2:
            return lambda t: t
        return None
    classes = whole.shape[-1]
    if part.dim() == 3 and part.shape[1] == classes:
        part = part.transpose(1, 2)
    if part.shape[-1] != classes or whole.dim() != 3:
        return None
    rows = part.reshape(-1, classes)
    for begin in range(3):
        for end in range(3):
            cut = whole[:, begin : whole.shape[1] - end].reshape(-1, classes)
            if cut.shape == rows.shape and gap(cut, rows) < 0.2:
                return lambda t, b=begin, e=end: t[:, b : t.shape[1] - e].reshape(-1, classes)  # type: ignore[misc]
    return None
