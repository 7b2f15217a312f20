"""Chooses the next combinations of techniques to measure, and estimates how much better others
could be.

The search starts from all techniques at once as well as from none: a technique that helps alone may
cost time among others, and one without effect alone may help among them. From the current
combination it tries removing each technique present and adding each one missing, in turns with the
combination itself, moves to anything faster, and ends when no step helps (stepwise regression in
both directions; Efroymson, Multiple Regression Analysis, 1960). Mutually exclusive techniques
replace each other.

Nothing is measured here: a given function does so, which lets tests plant known truths.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from schemas.config.measurement import Different
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison, Interval
from transformer_core.decide.intervals import student
from transformer_core.study.resolve import combine, exclusions, resolve
from transformer_core.study.variants import contradiction, leaves, lineage

Parts = frozenset[str]
Measure = Callable[[Sequence[Parts]], Mapping[Parts, float]]
"""Runs combinations in turns in one session; returns logarithms of their throughputs over that
of the baseline, for those that could run."""

NAME = "recommended"
LEAST_GAIN = 0.003  # minimum gain, as a logarithm, for a step: smaller ones would be noise
SIMPLER = 0.001
"""Minimum gain, as a logarithm, for a technique to stay: among equals the simpler one is better."""
UNTRIED = 0.05  # standard deviation of an effect among others that was measured only alone
FREEDOM = 5  # approximate degrees of freedom of the variance between sessions of a search
ROUNDING = 1e-6  # smallest standard deviation of a logarithm of a ratio
DRAWS = 4_000
MOST_COUNTED = 16


def eligible(study: Study, certificates: Mapping[str, Certificate]) -> list[str]:
    """The variants that may be part of a combination: all that train the same model."""
    return [
        name
        for name in study.variants
        if name != study.baseline and certificates[name].status == "equivalent"
    ]


def own_effects(
    study: Study, variants: Mapping[str, Variant], comparisons: Sequence[Comparison]
) -> dict[str, tuple[float, float]]:
    """Logarithm of the effect of each variant's own change on throughput, and its approximate
    standard error, where it was measured.

    This is the effect of a variant minus that of its parent; absent if either was not measured. A
    variant without a parent changes the study itself, which is what the oldest ancestor of the
    baseline runs.
    """
    found = {
        comparison.variant: comparison.speedup
        for comparison in comparisons
        if comparison.reference == study.baseline and comparison.speedup
    }
    measured = {name: log(ratio.median) for name, ratio in found.items()} | {study.baseline: 0.0}
    origin = lineage(study.baseline, variants)[0]
    return {
        # The ends of simultaneous intervals are about three standard errors away.
        name: (measured[name] - measured[parent], log(found[name].high / found[name].low) / 6)
        for name in study.variants
        if name in found and (parent := variants[name].parent or origin) in measured
    }


def parts_of(
    study: Study, variants: Mapping[str, Variant], name: str, known: Sequence[str]
) -> Parts | None:
    """The techniques that turn the baseline into variant ``name``, preferring those of ``known``;
    None if no techniques do.

    A variant that does not descend from the baseline is a bundle: it differs from the baseline by
    the changes of all its ancestors. Each of these changes may also be a separate variant.
    """
    goal = resolve(study, name, variants).model_copy(update={"variant": NAME})
    line = lineage(name, variants)
    if study.baseline in line:
        later = line[line.index(study.baseline) + 1 :]
        if combine(study, variants, later, NAME) == goal:
            return frozenset(later)
    wanted = _settings(goal)
    waiting = [
        part
        for part, variant in variants.items()
        if contradiction(dict(leaves(variant.change)), wanted) is None
        and (part in known or part not in study.variants)
        and not isinstance(variant.equivalence, Different)
    ]
    found: list[str] = []
    while (spec := combine(study, variants, found, NAME)) != goal:
        have, helps = _apart(spec, wanted), list[tuple[bool, int, str]]()
        for part in waiting:
            now = _apart(combine(study, variants, [*found, part], NAME), wanted)
            if now is not None and have is not None and len(now) < len(have):
                # Outside the study prefer the smallest change: a technique, not a bundle.
                helps.append((part not in known, len(have) - len(now), part))
        if not helps:
            return None
        found.append(min(helps)[-1])
    return frozenset(found)


def _apart(spec: RunSpec | None, wanted: Mapping[Any, Any]) -> set[Any] | None:
    """The settings in which a run spec differs from ``wanted``; None without a run spec."""
    if spec is None:
        return None
    have = _settings(spec)
    return {key for key in have.keys() | wanted.keys() if have.get(key) != wanted.get(key)}


def _settings(spec: RunSpec) -> dict[tuple[str, ...], Any]:
    """Every setting of a run spec by its path."""
    return dict(leaves(spec.model_dump(mode="json")))


@dataclass(frozen=True)
class Space:
    """The possible combinations."""

    parts: tuple[str, ...]  # techniques that may be combined, most promising first
    excluded: Mapping[str, Parts]  # for each technique, those that it cannot be combined with
    valid: Callable[[Parts], bool]  # whether a combination can be trained
    largest: int  # maximum techniques in a combination

    def fits(self, parts: Parts) -> bool:
        """Whether these techniques form a valid combination."""
        alone = all(self.excluded[part].isdisjoint(parts) for part in parts)
        return alone and len(parts) <= self.largest and self.valid(parts)

    def filled(self, wanted: Iterable[str], have: Parts = frozenset()) -> Parts:
        """``have`` plus as many of the ``wanted`` techniques as fit, in order."""
        waiting = [part for part in wanted if part not in have]
        # A technique that needs another fits only after it.
        while added := next((part for part in waiting if self.fits(have | {part})), None):
            have |= {added}
            waiting.remove(added)
        return have

    def steps(self, parts: Parts) -> dict[str, Parts]:
        """For each technique, the combination without it if present, or with it if absent.

        An added technique replaces those that exclude it. If others need a removed one, or an added
        one needs a missing one, one of these is removed or added along with it.
        """
        found = {}
        for part in self.parts:
            if part in parts:
                step = parts - {part}
                ways = [step, *(step - {other} for other in step)]
            else:
                step = (parts | {part}) - self.excluded[part]
                ways = [step, *(step | {other} for other in self.parts if other not in step)]
            if way := next((way for way in ways if self.fits(way) and way != parts), None):
                found[part] = way
        return found


def space_of(
    study: Study,
    variants: Mapping[str, Variant],
    parts: Sequence[str],
    effects: Mapping[str, float],
) -> Space:
    """The combinations of ``parts`` with the baseline of a study."""
    assert study.search is not None, "the study asks for a search"
    baseline = combine(study, variants, (), NAME)
    # A technique that matches the baseline would be in every combination.
    useful = [part for part in parts if combine(study, variants, (part,), NAME) != baseline]
    useful.sort(key=lambda part: -effects.get(part, 0.0))
    known: dict[Parts, bool] = {}

    def valid(chosen: Parts) -> bool:
        if chosen not in known:
            known[chosen] = combine(study, variants, sorted(chosen), NAME) is not None
        return known[chosen]

    return Space(tuple(useful), exclusions(variants, useful), valid, study.search.largest)


def considered(space: Space) -> int:
    """Number of combinations of the 16 most promising techniques in which no two exclude each
    other."""

    def count(parts: Sequence[str], room: int) -> int:
        return sum(
            1 + count([p for p in parts[n + 1 :] if p not in space.excluded[part]], room - 1)
            for n, part in enumerate(parts)
            if room
        )

    return count(space.parts[:MOST_COUNTED], space.largest)


def starts(
    space: Space, effects: Mapping[str, float], bundles: Sequence[Parts], count: int
) -> list[Parts]:
    """Starting points of the search: all techniques at once, those that help alone, the
    ``bundles`` of the study with and without those that help alone, and those that help alone
    except one; ``count`` in all, but at least two."""
    everything = space.filled(space.parts)
    helpful = [part for part in space.parts if effects.get(part, 0.0) > 0]
    paying = space.filled(helpful)
    more = [space.filled(helpful, bundle) for bundle in bundles]
    fewer = [paying - {part} for part in sorted(paying, key=lambda part: effects.get(part, 0.0))]
    found = dict.fromkeys([everything, paying, *more, *bundles, *filter(space.fits, fewer)])
    return [parts for parts in found if parts][: max(2, count)]


@dataclass
class Exploration:
    """Results of a search so far, and its next moves."""

    space: Space
    measure: Measure
    room: int  # combinations that may take turns at once, besides the baseline
    more: Callable[[], bool]  # whether there is time for another session
    alone: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Logarithm of the effect of each technique alone, and its standard error."""
    seen: list[Mapping[Parts, float]] = field(default_factory=list)
    """Measurements of every session; the first may be those of an earlier comparison."""
    ended: set[Parts] = field(default_factory=set)  # combinations that cannot run

    def speed(self, parts: Parts) -> float:
        """Logarithm of a combination's throughput over that of the baseline."""
        found = [session[parts] for session in self.seen if parts in session]
        return fmean(found) if found else -np.inf

    def rank(self, parts: Parts) -> float:
        """Ranking score: the speed, less a small penalty per technique."""
        return self.speed(parts) - SIMPLER * len(parts)

    def gains(self, parts: Parts, over: Parts) -> list[float]:
        """Speed gain over another combination, for each session in which both took turns."""
        sessions = [{frozenset[str](): 0.0} | dict(session) for session in self.seen]
        return [s[parts] - s[over] for s in sessions if parts in s and over in s]

    def expected(self, part: str, over: Parts) -> tuple[float, float]:
        """Gain of the step with ``part`` from a combination, as its effect alone suggests, and the
        standard deviation of this estimate, including how much other techniques may change it."""
        effect, error = self.alone.get(part, (0.0, UNTRIED))
        return -effect if part in over else effect, float(np.hypot(error, UNTRIED))

    def run(self, first: Sequence[Parts]) -> None:
        """Measure those of the ``first`` combinations that have no measurement yet, and climb from
        each of them, fastest first, while time remains."""
        new = [parts for parts in first if self.speed(parts) == -np.inf]
        for start in range(0, len(new), self.room):
            if not start or self.more():
                self._play(new[start : start + self.room])
        left = [parts for parts in first if self.speed(parts) > -np.inf]
        for parts in sorted(left, key=self.rank, reverse=True):
            self._climb(parts)

    def _climb(self, standing: Parts) -> None:
        """Move from a combination to faster ones, until no step helps or time runs out."""
        been = {standing, frozenset[str]()}
        while self.more():
            steps = self.space.steps(standing)
            gains = {part: self._gain(step, standing) for part, step in steps.items()}
            better = sorted((p for p in steps if gains[p] > LEAST_GAIN), key=lambda p: -gains[p])
            # All better steps that fit together, at once; the best step; steps not yet tried.
            together = self.space.filled(
                (part for part in better if part not in standing), standing - {*better}
            )
            asked = [together, *(steps[part] for part in better[:1])]
            untried = [part for part in steps if gains[part] == -np.inf]
            untried.sort(key=lambda part: -sum(self.expected(part, standing)))
            asked += [steps[part] for part in untried]
            rivals = [
                parts
                for parts in dict.fromkeys(asked)
                if parts not in been | self.ended and len(self.gains(parts, standing)) < 2
            ]
            if not rivals:
                return
            self._play([standing, *rivals[: self.room - 1]])
            if standing in self.ended:
                return
            ahead = max(rivals, key=lambda parts: self._gain(parts, standing))
            if self._gain(ahead, standing) > LEAST_GAIN * (1 if ahead == together else 2):
                standing = ahead
                been.add(ahead)

    def _gain(self, parts: Parts, over: Parts) -> float:
        """Mean of their gains; minus infinity if they never took turns."""
        gains = self.gains(parts, over)
        return fmean(gains) if gains else -np.inf

    def _play(self, combinations: Sequence[Parts]) -> None:
        found = self.measure(combinations)
        self.ended |= {parts for parts in combinations if parts not in found}
        self.seen.append(found)


def beside(exploration: Exploration, best: Parts, deviation: float) -> dict[str, Interval]:
    """By technique, the throughput of its step from ``best`` over that of ``best``, with its 95 %
    interval, from the sessions in which both took turns, whose ratios vary by ``deviation``."""
    reach = student(0.975, FREEDOM) * deviation
    found = {}
    for part, step in exploration.space.steps(best).items():
        if gains := exploration.gains(step, best):
            middle, half, count = fmean(gains), reach * sqrt(2 / len(gains)), len(gains)
            found[part] = Interval(
                median=exp(middle), low=exp(middle - half), high=exp(middle + half), samples=count
            )
    return found


def regret(exploration: Exploration, best: Parts, deviation: float) -> Interval:
    """How much faster than ``best`` any other combination could still be, with a 95 % interval.

    The gain of each step is known from the technique's effect alone and, where it was tried, from
    the sessions in which it took turns with ``best``, whose ratios vary by ``deviation``; each
    counts by the inverse of its variance. Steps are assumed to multiply; of mutually exclusive
    techniques only one contributes.
    """
    random = np.random.default_rng(20_170_612)
    drawn: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    tried = 0
    for part, step in exploration.space.steps(best).items():
        if step in exploration.ended:
            continue
        gains = exploration.gains(step, best)
        tried += bool(gains)
        center, error = exploration.expected(part, best)
        if gains:
            known, more = 1 / error**2, len(gains) / (2 * max(deviation, ROUNDING) ** 2)
            center = (known * center + more * fmean(gains)) / (known + more)
            error = (known + more) ** -0.5
        drawn[part] = np.maximum(0.0, center + error * random.standard_t(FREEDOM, size=DRAWS))
    total = np.zeros(DRAWS)
    waiting = [*drawn]
    while waiting:
        group = {waiting.pop()}
        excluded = exploration.space.excluded
        while more_of := [part for part in waiting if not excluded[part].isdisjoint(group)]:
            group |= {*more_of}
            waiting = [part for part in waiting if part not in group]
        total += np.max([drawn[part] for part in group], axis=0)
    low, middle, high = np.exp(np.quantile(total, [0.025, 0.5, 0.975]))
    return Interval(median=float(middle), low=float(low), high=float(high), samples=tried)


def stages(
    study: Study, variants: Mapping[str, Variant], parts: Parts, effects: Mapping[str, float]
) -> tuple[dict[str, Parts], dict[str, Parts]]:
    """The steps from the baseline to a combination, and the combination without each part.

    Keyed by the part added or left out; the one with the largest own effect comes first. A step
    whose changes are invalid alone (a bucket view without DistributedDataParallel) comes later, or
    is left out.
    """

    def valid(chosen: Parts) -> bool:
        return combine(study, variants, sorted(chosen), NAME) is not None

    waiting = sorted(sorted(parts), key=lambda part: -effects.get(part, 0.0))
    steps: dict[str, Parts] = {}
    have: Parts = frozenset()
    while part := next((p for p in waiting if valid(have | {p})), None):
        waiting.remove(part)
        have |= {part}
        steps[part] = have
    without = {part: parts - {part} for part in sorted(parts) if valid(parts - {part})}
    return steps, without


def predicted(parts: Iterable[str], effects: Mapping[str, float]) -> float:
    """The ratio to the baseline if the techniques' single effects multiplied."""
    return exp(sum(effects.get(part, 0.0) for part in parts))
