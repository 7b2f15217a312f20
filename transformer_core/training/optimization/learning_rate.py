"""Learning rates as plain functions of the step."""

import math

from schemas.config.training import AnySchedule, Constant, Cosine, Linear, Noam


def learning_rate(spec: AnySchedule, step: int, steps: int, d_model: int) -> float:
    """Learning rate of optimizer step ``step`` (from 1) of ``steps``.

    Noam: arXiv 1706.03762, section 5.3. Cosine: arXiv 1608.03983 without restarts.
    """
    if isinstance(spec, Noam):
        return spec.factor * d_model**-0.5 * min(step**-0.5, step * spec.warmup**-1.5)
    if step <= spec.warmup:
        return spec.peak * step / spec.warmup
    left = (steps - step) / max(1, steps - spec.warmup)
    match spec:
        case Constant():
            return spec.peak
        case Linear():
            return spec.peak * left
        case Cosine():
            return spec.peak * 0.5 * (1.0 - math.cos(math.pi * left))
