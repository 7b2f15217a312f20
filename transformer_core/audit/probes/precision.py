"""Computes a call in 64 bits: each module's result must be as close as its format allows."""

import math

import torch

from transformer_core.audit.probes.probed_call import ProbedCall
from transformer_core.audit.replay import gap
from transformer_core.tune.facts import device_of, formats_of_products

LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.06, torch.float16: 0.01}
"""Relative errors of a module's result that its format explains, whatever the measured floor."""
MARGIN = 8.0  # a difference beyond this multiple of the measured floor is not rounding
PRODUCTS = {"tf32": torch.float16, "bf16": torch.bfloat16}
"""Formats with as many bits of precision as products of float32 may have."""


def precision(probed: ProbedCall) -> None:
    """Compare each module's result in its own format with that in 64 bits."""
    if not probed.double:
        probed.notes.cannot("precision", "the model does not run in 64 bits")
        return
    # Random numbers are others in 64 bits: those of dropout, of added noise, of sampled weights.
    evaluation = probed.evaluation or probed.base.drew
    if probed.again(double=False, evaluation=evaluation).drew:
        probed.notes.cannot("precision", "the model draws random numbers in evaluation mode, too")
        return
    formats = {p.dtype for p in probed.call.inner.parameters() if p.is_floating_point()}
    formats |= {probed.call.autocast} if probed.call.autocast else set()
    if torch.float32 in formats:
        products = formats_of_products([probed.call.inner], device_of(probed.call.inner))
        formats |= {PRODUCTS[each] for each in products & PRODUCTS.keys()}
    coarse = max(formats, key=lambda f: torch.finfo(f).eps)
    own = probed.again(double=False, inside=True, evaluation=evaluation)
    exact = probed.again(inside=True, evaluation=evaluation)
    moved = probed.again(inside=True, evaluation=evaluation, disturb=torch.finfo(coarse).eps)
    parts = dict(probed.call.inner.named_modules())
    count = len(exact.modules)
    probed.notes.holds("precision", f"{count} module{'s' * (count != 1)} of {probed.name}")
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
            if size > allowed and math.isfinite(floor):
                probed.notes.found(
                    "precision",
                    probed.watcher.name_of(parts[name]),
                    f"its result is {size:.1e} off that of the same code in 64 bits, but rounding explains only "
                    f"{allowed:.1e}",
                    "compute angles, normalizations, softmax and sums in float32",
                    size,
                    allowed,
                )
                return
