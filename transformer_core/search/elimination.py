"""Backward elimination: what the best combination is faster without.

Combinations enter a search by the product of their parts' single effects. A technique that pays
alone may cost beside others, and then it stands in every combination that promises much. So the
best one takes turns with itself without each of its parts, and the search goes on from the fastest
of them, until nothing is better left out (stepwise regression's backward elimination; Efroymson,
Multiple Regression Analysis, 1960).
"""

import time
from collections.abc import Mapping
from math import exp

from schemas.config.variants import Variant
from transformer_core.common.progress import log as progress_log
from transformer_core.plan.combinations import combine
from transformer_core.search.stages import stages
from transformer_core.search.trial_round import FEWEST_TURNS, play_round
from transformer_core.search.trials import NAME, Bench, Parts, Trial


def eliminate(
    bench: Bench, variants: Mapping[str, Variant], trials: list[Trial], effects: Mapping[str, float]
) -> None:
    """Measure the best of ``trials`` without its parts, and go on from the fastest; what was
    measured joins ``trials``. The first round is always made."""
    spent, better = 0.0, frozenset[str]()
    pairs = max(FEWEST_TURNS, bench.study.comparison.pairs)
    while best := _best(trials):
        rivals = _rivals(bench, variants, trials, effects, best, better)
        if not rivals:
            return
        if spent and bench.left_for_rounds() < 1.2 * spent:
            progress_log.info("search: no time to leave out more than was left out")
            return
        began = time.monotonic()
        play_round(bench, [best, *rivals], pairs, best.reached + 1)
        spent = time.monotonic() - began
        trials += [rival for rival in rivals if rival not in trials]
        if best.status != "ok" or _best(trials) is best:
            return
        better = frozenset[str]().union(
            *(
                set(best.parts) - set(rival.parts)
                for rival in rivals
                if rival.status == "ok"
                and len(rival.parts) == len(best.parts) - 1
                and rival.rounds[-1] > best.rounds[-1]
            )
        )


def _best(trials: list[Trial]) -> Trial | None:
    alive = [trial for trial in trials if trial.status == "ok" and trial.rounds]
    return max(alive, key=lambda trial: trial.rank, default=None)


def _rivals(
    bench: Bench,
    variants: Mapping[str, Variant],
    trials: list[Trial],
    effects: Mapping[str, float],
    best: Trial,
    better: frozenset[str],
) -> list[Trial]:
    """Combinations that take fewer parts than the best one, as many as there is room for.

    Without all parts that were ``better`` left out; without one each, beginning with the smallest
    single effect; then the stages that lead to it.
    """
    steps, without = stages(bench.study, variants, best.parts, effects)
    fewest = sorted(without.items(), key=lambda item: effects.get(item[0], 0.0))
    lean = tuple(part for part in best.parts if part not in better)
    asked = [lean, *(rest for _, rest in fewest), *reversed(steps.values())]
    known = {frozenset(trial.parts): trial for trial in trials}
    found = {best.spec.digest(): best}
    for parts in asked:
        trial = known.get(frozenset(parts)) or _trial(bench, variants, parts, effects)
        if trial is not None and trial.status == "ok":
            found.setdefault(trial.spec.digest(), trial)
    return list(found.values())[1 : bench.together - 1]


def _trial(
    bench: Bench, variants: Mapping[str, Variant], parts: Parts, effects: Mapping[str, float]
) -> Trial | None:
    """The combination of ``parts``; None where their changes make no valid run spec."""
    spec = combine(bench.study, variants, parts, NAME) if parts else None
    if spec is None:
        return None
    return Trial(parts, spec, exp(sum(effects.get(part, 0.0) for part in parts)))
