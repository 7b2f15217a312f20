"""Stepwise selection: what the best combination is faster without, and with.

Combinations enter a search by the product of their parts' single effects. A technique that pays
alone may cost beside others, and one that shows nothing alone may pay beside them. So the best one
takes turns with itself without each of its parts and with further ones, and the search goes on from
the fastest of them, until nothing is better left out or added (stepwise regression; Efroymson,
Multiple Regression Analysis, 1960).
"""

import time
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from math import exp

from schemas.config.variants import Variant
from transformer_core.common.progress import log as progress_log
from transformer_core.decide.search.stages import stages
from transformer_core.decide.search.trial_round import FEWEST_TURNS, play_round
from transformer_core.decide.search.trials import NAME, Bench, Parts, Trial
from transformer_core.study.combinations import combine


def improve(
    bench: Bench,
    variants: Mapping[str, Variant],
    trials: list[Trial],
    effects: Mapping[str, float],
    most: Mapping[str, float],
) -> None:
    """Measure the best of ``trials`` without its parts and with others, and go on from the fastest;
    what was measured joins ``trials``. The first round is always made.

    ``effects`` are the logarithms of what parts do alone, ``most`` the upper ends of their
    intervals, of every part that may be added.
    """
    spent, better = 0.0, frozenset[str]()
    pairs = max(FEWEST_TURNS, bench.study.comparison.pairs)
    while best := _best(trials):
        rivals = _Rivals(bench, variants, trials, effects, most).of(best, better)
        if not rivals:
            return
        if spent and bench.left_for_rounds() < 1.2 * spent:
            progress_log.info("search: no time to leave out or add more than was")
            return
        began = time.monotonic()
        play_round(bench, [best, *rivals], pairs, best.reached + 1)
        spent = time.monotonic() - began
        trials += [rival for rival in rivals if rival not in trials]
        if best.status != "ok" or _best(trials) is best:
            return
        better = _better(best, rivals)


def _best(trials: list[Trial]) -> Trial | None:
    alive = [trial for trial in trials if trial.status == "ok" and trial.rounds]
    return max(alive, key=lambda trial: trial.rank, default=None)


def _better(best: Trial, rivals: Sequence[Trial]) -> frozenset[str]:
    """The parts that the best combination was faster without, or with."""
    steps = [
        set(best.parts) ^ set(rival.parts)
        for rival in rivals
        if rival.status == "ok" and rival.rounds[-1] > best.rounds[-1]
    ]
    return frozenset[str]().union(*(step for step in steps if len(step) == 1))


class _Rivals:
    """What a combination takes turns with."""

    def __init__(
        self,
        bench: Bench,
        variants: Mapping[str, Variant],
        trials: Sequence[Trial],
        effects: Mapping[str, float],
        most: Mapping[str, float],
    ) -> None:
        self.bench, self.variants, self.effects, self.most = bench, variants, effects, most
        self.known = {frozenset(trial.parts): trial for trial in trials}

    def of(self, best: Trial, better: frozenset[str]) -> list[Trial]:
        """Combinations a step from the best one, as many as there is room for.

        With all steps at once that were ``better``; without one part each, beginning with the
        smallest single effect, and in turn with one more each, beginning with what could gain most;
        then the stages that lead to it.
        """
        study = self.bench.study
        steps, without = stages(study, self.variants, best.parts, self.effects)
        fewer = sorted(without.items(), key=lambda item: self.effects.get(item[0], 0.0))
        in_turn = zip_longest((rest for _, rest in fewer), self._with_one_more(best.parts))
        at_once = (
            *(part for part in best.parts if part not in better),
            *sorted(better - {*best.parts}),
        )
        asked = [at_once, *filter(None, chain.from_iterable(in_turn)), *reversed(steps.values())]
        found = {best.spec.digest(): best}
        for parts in asked:
            trial = self.known.get(frozenset(parts)) or self._trial(parts)
            if trial is not None and trial.status == "ok":
                found.setdefault(trial.spec.digest(), trial)
        return list(found.values())[1 : self.bench.together - 1]

    def _with_one_more(self, parts: Parts) -> list[Parts]:
        """The combination with each part that could gain something beside it, if there is room."""
        assert self.bench.study.search is not None, "somebody asked for a search"
        if len(parts) >= self.bench.study.search.largest:
            return []
        hopeful = sorted(self.most.items(), key=lambda item: -item[1])
        return [(*parts, part) for part, gain in hopeful if gain > 0 and part not in parts]

    def _trial(self, parts: Parts) -> Trial | None:
        """The combination of ``parts``; None where their changes make no valid run spec."""
        if not parts or (spec := combine(self.bench.study, self.variants, parts, NAME)) is None:
            return None
        return Trial(parts, spec, exp(sum(self.effects.get(part, 0.0) for part in parts)))
