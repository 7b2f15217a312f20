"""Changes what lies under the padding: no prediction may change, and no target there may count."""

import re

import torch
from torch import Tensor, nn

from transformer_core.audit.probes.probed_call import OutOfTimeError, ProbedCall
from transformer_core.audit.probes.tokens import (
    NO_LOSS,
    NO_TOKENS,
    OTHER_TARGETS,
    bound,
    integers,
    is_tokens,
    shift_of,
    swapped,
)
from transformer_core.audit.replay import Call, Result, gap
from transformer_core.tune.nested import mapped, tensors

_OF_LOSSES = re.compile(r"loss|label|target|(^|_)lm_|completion|response|action")


def padding(probed: ProbedCall) -> None:
    """Change tokens under the padding: no other prediction may change, and none may count."""
    why = "no padding is seen: no mask, and no embedding with a padding index"
    places = integers(probed.call)
    for tokens in places:
        hidden, masked = _padded(probed.call, tokens)
        if hidden is None or not bool(hidden.any()) or bool(hidden.all()):
            continue
        values = tokens[~hidden]
        changed = tokens.clone()
        changed[hidden] = values[
            torch.arange(int(hidden.sum()), device=values.device) % len(values)
        ]
        if bool((changed == tokens).all()):
            continue
        compared, why = False, NO_LOSS
        new = _with_other_padding(probed, tokens, hidden, changed)
        for old, now, target, length in probed.rows_of_tokens(tokens, new):
            # A prediction for the whole row has no place under the padding.
            real = ~hidden[:, :length].reshape(-1) | (length == 1)
            if masked:  # Otherwise, a changed token is no padding any more.
                probed.same(
                    "padding",
                    old[real],
                    now[real],
                    "predictions of real tokens change with the tokens under the padding",
                    "pass the padding mask to attention, and leave padding out of means",
                )
            if found := _targets_of(tokens, target):
                _counted_padding(probed, tokens, hidden, target, *found)
                _lost_ends(probed, tokens, hidden, *found)
            why = OTHER_TARGETS
            compared |= masked or found is not None
        if _at_an_end(tokens, hidden):
            reached = _reached_padding(probed, tokens, hidden, masked)
            if masked:
                compared = compared or _whole_rows(probed, tokens, new)
                _wider(probed, tokens, hidden)
            else:
                compared |= reached
        if compared:
            how = "tokens under the padding changed" if masked else "targets under the padding"
            probed.notes.holds("padding", how)
            return
    probed.notes.cannot("padding", why if places else NO_TOKENS)


def _with_other_padding(
    probed: ProbedCall, tokens: Tensor, hidden: Tensor, changed: Tensor
) -> Result:
    """The result with the embeddings of the tokens ``changed`` in hidden places. The tokens stay, because
    a model may find the padding, and so the last real token, by its token. If no embedding gets them,
    they are replaced."""

    def hide(part: nn.Embedding, output: Tensor) -> Tensor:
        return torch.where(hidden[..., None], part.weight[changed].to(output), output)

    new = probed.with_other_embeddings(tokens, hide)
    return new or probed.again(args=swapped(probed.call, tokens, changed))


def _wider(probed: ProbedCall, tokens: Tensor, hidden: Tensor) -> None:
    """Pad the batch by one more column: no prediction may change."""
    given = tensors((probed.call.args, probed.call.kwargs), floating=False)
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
        base = probed.again(evaluation=True)
        new = probed.again(
            evaluation=True, args=mapped((probed.call.args, probed.call.kwargs), pad)
        )
    except OutOfTimeError:
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
        if (change := gap(now, old)) > probed.still:
            probed.notes.found(
                "padding",
                probed.name,
                "predictions change when the batch is padded by one more column on the "
                + ("left: positions or a recurrence may count the padding" if left else "right"),
                "count positions from the first real token, or pad on the right"
                if left
                else "leave padding out of means, maxima and normalizations",
                change,
                probed.still,
                sure=not left,
            )


def _whole_rows(probed: ProbedCall, tokens: Tensor, new: Result) -> bool:
    """Compares results for whole rows, such as scores; False if there are none."""
    found = False
    for old, now in zip(probed.base.outputs, new.outputs, strict=True):
        each = old.shape[:1] == tokens.shape[:1] and tokens.shape[1] not in old.shape[1:]
        if each and old.is_floating_point():
            found = True
            probed.same(
                "padding",
                old,
                now,
                "results for whole rows change with the tokens under the padding",
                "read them at the last real token, and leave padding out of attention and means",
            )
    return found


def _reached_padding(probed: ProbedCall, tokens: Tensor, hidden: Tensor, masked: bool) -> bool:
    """Notes places under the padding that any loss, also a handwritten one, counts; False if that cannot
    be told."""
    texts = [n for n, t in bound(probed.call).items() if is_tokens(n, t) and "label" not in n]
    config = getattr(probed.call.inner, "config", None)
    if len(texts) > 1 or getattr(config, "is_encoder_decoder", False):
        return False  # The places of the result may be those of another text.
    within = hidden.clone()
    within[:, :-1] &= hidden[:, 1:]  # The last place before a text may predict its first token.
    of_tokens = [each for each in probed.call.touched if each.shape == tokens.shape]
    for touched in of_tokens:
        if count := int((touched & within).sum()):
            probed.notes.found(
                "padding",
                f"the targets of {probed.name}",
                f"{count} places under the padding get a gradient: they count in the loss",
                "leave the places under the padding out of the loss",
                float(count),
                0.0,
                sure=masked,  # A later layer may read them on purpose.
            )
    return bool(of_tokens)


def _counted_padding(
    probed: ProbedCall, tokens: Tensor, hidden: Tensor, target: Tensor, wanted: Tensor, there: slice
) -> None:
    under = hidden[:, there]
    # A mask may leave out rows of a loss without reduction, inside the call or outside.
    known = probed.base.counted.get(id(target))
    if known is not None and known.numel() == target.numel():
        under = under & known.view(len(tokens), -1)[:, : wanted.shape[1]]
    elif touched := [t for t in probed.call.touched if t.shape == tokens.shape]:
        under = under & torch.stack(touched).any(0)[:, : wanted.shape[1]]
    counted = wanted[under] == tokens[:, there][under]
    counted &= ~probed.left_out(wanted[under])
    if counted.numel() and bool(counted.any()):
        probed.notes.found(
            "padding",
            f"the targets of {probed.name}",
            f"{int(counted.sum())} places under the padding count in the loss",
            "set the targets under the padding to -100 (ignore_index)",
            float(counted.sum()),
            0.0,
        )


def _lost_ends(
    probed: ProbedCall, tokens: Tensor, hidden: Tensor, wanted: Tensor, there: slice
) -> None:
    """Notes a token that ends texts and is never a target, because it is the padding too."""
    counts = ~probed.left_out(wanted)
    pads = tokens[hidden].unique()
    twins = (~hidden & (tokens == pads[0]))[:, there]
    ends = twins[:, 1:] & counts[:, :-1]
    if len(pads) == 1 and bool(ends.any()) and not bool((twins & counts).any()):
        probed.notes.found(
            "padding",
            f"the targets of {probed.name}",
            f"token {int(pads[0])} is padding and also ends {int(ends.sum())} texts, where it is no "
            "target either: the model never learns to end one",
            "leave targets out by the mask, not by their number, or give padding a token of its own",
            sure=False,
        )


def _at_an_end(tokens: Tensor, hidden: Tensor) -> bool:
    """Whether hidden places hold one token, at the ends or at the beginnings of rows: that is padding.
    Elsewhere, a mask may mean something else: prompts, or words to predict."""
    after, before = hidden.cummax(1).values, hidden.flip(1).cummax(1).values.flip(1)
    ends = torch.equal(hidden, after) or torch.equal(hidden, before)
    return ends and len(tokens[hidden].unique()) == 1


def _padded(call: Call, tokens: Tensor) -> tuple[Tensor | None, bool]:
    """Whether each token is padding, or None if unknown; and whether a mask says so instead of a padding
    index."""
    for name, value in bound(call).items():
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


def _targets_of(tokens: Tensor, target: Tensor) -> tuple[Tensor, slice] | None:
    """The targets [batch, n] that are tokens of the rows, and the places of these tokens; None if the
    targets are others."""
    wanted = target.reshape(tokens.shape[0], -1)
    shift = shift_of(tokens, wanted)
    if shift is None:
        return None
    length = min(tokens.shape[1] - shift, wanted.shape[1])
    return wanted[:, :length], slice(shift, shift + length)
