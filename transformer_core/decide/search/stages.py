"""The way from the baseline to a combination."""

from collections.abc import Mapping

from schemas.config.study import Study
from schemas.config.variants import Variant
from transformer_core.decide.search.trials import NAME, Parts
from transformer_core.study.combinations import combine


def stages(
    study: Study, variants: Mapping[str, Variant], parts: Parts, effects: Mapping[str, float]
) -> tuple[dict[str, Parts], dict[str, Parts]]:
    """The steps from the baseline to a combination, and the combination without each part.

    By the part that is added or left out; the one with the largest effect of its own is added
    first. A step whose changes do not stand alone (a bucket view without DistributedDataParallel)
    is made later, or left out.
    """
    waiting = sorted(parts, key=lambda part: -effects.get(part, 0.0))
    steps: dict[str, Parts] = {}
    have: Parts = ()
    while waiting:
        valid = [p for p in waiting if combine(study, variants, (*have, p), NAME) is not None]
        if not valid:
            break
        part = valid[0]
        waiting.remove(part)
        have = (*have, part)
        steps[part] = have
    without = {
        part: rest
        for part in parts
        if (rest := tuple(other for other in parts if other != part))
        and combine(study, variants, rest, NAME) is not None
    }
    return steps, without
