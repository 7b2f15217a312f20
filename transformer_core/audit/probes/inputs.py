"""Changes the values of each argument: the result must change."""

import torch
from torch import Tensor

from transformer_core.audit.probes.probed_call import OutOfTimeError, ProbedCall
from transformer_core.audit.probes.tokens import named, swapped
from transformer_core.tune.nested import tensors

MOST_ARGUMENTS = 6


def inputs(probed: ProbedCall) -> None:
    """Exchange one argument's values between samples, or places: the result must change."""
    given = named(probed.call).items()
    own = {n: t for n, t in given if isinstance(t, Tensor) and not _is_passed_on(n)}
    own = {n: t for n, t in own.items() if t.layout == torch.strided and not t.is_nested}
    tested = 0
    for name, value in [*own.items()][:MOST_ARGUMENTS]:
        axes = [n for n in (0, -1) if value.dim() and not torch.equal(value.roll(1, n), value)]
        if not axes:
            continue
        turned = value.detach().roll(1, axes[0])
        first = turned.narrow(axes[0], 0, 1)
        try:
            same = _stays(probed, value, turned)
            # The sum of a loss over samples is the same in any order.
            same = same and _stays(probed, value, first.expand_as(value).contiguous())
        except OutOfTimeError:
            raise
        except Exception:
            continue  # such as lengths that must be sorted
        tested += 1
        if same:
            probed.notes.found(
                "inputs",
                f"{name} of {probed.name}",
                "nothing depends on it: the result stays the same when its values are shuffled",
                "use it, or do not pass it; a layer in between may not pass it on",
                sure=False,
            )
    if tested:
        probed.notes.holds(
            "inputs", f"{tested} argument{'s' * (tested != 1)} of {probed.name} changed"
        )
    else:
        probed.notes.cannot("inputs", "no argument is a tensor whose values can be shuffled")


def _stays(probed: ProbedCall, value: Tensor, changed: Tensor) -> bool:
    """Whether the results stay the same with another argument in place of ``value``."""
    new = probed.again(args=swapped(probed.call, value, changed))
    old, now = (
        [*r.outputs, *tensors([given for _, *given in r.losses], floating=False)]
        for r in (probed.base, new)
    )
    pairs = [*zip(old, now, strict=True)]
    return bool(pairs) and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def _is_passed_on(name: str) -> bool:
    """Whether an argument may go through a model without effect: targets and numbers of samples."""
    return any(word in name.lower() for word in ("label", "target", "idx", "index"))
