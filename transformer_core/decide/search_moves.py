"""Chooses the next combinations of techniques to measure, and estimates how much better others
could be.

The search measures what is likely to be the best by all that is known
(:mod:`transformer_core.decide.search_effects`), at first also all techniques at once. Mutually exclusive
techniques replace each other.

Nothing is measured here: a given function does so, which lets tests plant known truths.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import exp, hypot, log
from typing import Any

import numpy as np

from schemas.config.measurement import Different
from schemas.config.run_spec import RunSpec
from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.results import Certificate, Comparison, Interval
from transformer_core.decide.intervals import student
from transformer_core.decide.search_effects import REMEMBERED, Array, Effects, Noise, Parts
from transformer_core.study.resolve import combine, exclusions, resolve
from transformer_core.study.variants import contradiction, leaves, lineage

Measure = Callable[[Sequence[Parts]], Mapping[Parts, float]]
"""Runs combinations in turns in one session; returns logarithms of their throughputs over that
of the baseline, for those that could run."""

NAME = "recommended"
SIMPLER = 0.001
"""Minimum gain, as a logarithm, for a technique to stay: among equals the simpler one is better."""
SETTLED = 0.005  # standard deviation of a logarithm that needs no further session
FREEDOM = 5  # approximate degrees of freedom of the variance between sessions of a search
DRAWS = 200  # of effects, for an interval
DRAWS_FOR_EACH = 4  # at most, for a combination to measure
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

    This is the effect of a variant minus that of its parent, with the errors of both; absent if
    either was not measured. A variant without a parent changes the study itself, which is what the
    oldest ancestor of the baseline runs.
    """
    found = {
        comparison.variant: comparison.speedup
        for comparison in comparisons
        if comparison.reference == study.baseline and comparison.speedup
    }
    measured = {name: log(ratio.median) for name, ratio in found.items()} | {study.baseline: 0.0}
    errors = {name: error_of(ratio) for name, ratio in found.items()} | {study.baseline: 0.0}
    origin = lineage(study.baseline, variants)[0]
    return {
        name: (measured[name] - measured[parent], hypot(errors[name], errors[parent]))
        for name in study.variants
        if name in found and (parent := variants[name].parent or origin) in measured
    }


def error_of(ratio: Interval) -> float:
    """Approximate standard error of the logarithm of a ratio: the ends of simultaneous intervals are
    about three of these away."""
    return log(ratio.high / ratio.low) / 6


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
    other; of all techniques there are at least as many."""

    def count(parts: Sequence[str], room: int) -> int:
        return sum(
            1 + count([p for p in parts[n + 1 :] if p not in space.excluded[part]], room - 1)
            for n, part in enumerate(parts)
            if room
        )

    return count(space.parts[:MOST_COUNTED], space.largest)


@dataclass
class Exploration:
    """Results of a search so far, and its next moves."""

    space: Space
    measure: Measure
    room: int  # combinations that may take turns at once, besides the baseline
    more: Callable[[], bool]  # whether there is time for another session
    effects: Effects
    noise: Noise  # of a session
    sessions: list[Mapping[Parts, float]] = field(default_factory=list)
    ended: set[Parts] = field(default_factory=set)  # combinations that cannot run

    def __post_init__(self) -> None:
        self._steps = lru_cache(REMEMBERED)(self.space.steps)

    def run(self) -> None:
        """Measures the most promising combinations while time remains and any is in doubt; in the
        first session also all techniques at once that may help among others."""
        everything = self.space.filled(filter(self._may_help, self.space.parts))
        first = dict.fromkeys([everything, *self._promising()])
        if not self.sessions:
            self._play([*filter(None, first)][: self.room])
        while self.more() and (asked := self._promising()):
            self._play(asked)

    def _may_help(self, part: str) -> bool:
        """Whether the effect of a technique among all others may well be above 0."""
        others = {*self.space.parts} - self.space.excluded[part] - {part}
        effect, deviation = self.effects.step(frozenset(others | {part}), frozenset(others))
        return effect + deviation > 0

    def rank(self, parts: Parts, effects: Array | None = None) -> float:
        """The speed by these effects or the mean, less a small penalty per technique."""
        return self.effects.speed(parts, effects) - SIMPLER * len(parts)

    def best(self, effects: Array, begin: Iterable[Parts] = ()) -> Parts:
        """The best combination for these effects, found step by step from all techniques, from
        those that gain and from ``begin``."""
        score = partial(self.rank, effects=effects)
        order = sorted(self.space.parts, key=lambda part: -score(frozenset([part])))
        gaining = [part for part in order if score(frozenset([part])) > 0]
        found = [self.space.filled(order), self.space.filled(gaining), *begin]
        tops = [top for parts in found if (top := self._top(parts, score)) not in self.ended]
        return max(tops, key=score, default=frozenset())

    def _top(self, parts: Parts, score: Callable[[Parts], float]) -> Parts:
        """Where steps that gain most lead from a combination."""
        while True:
            steps = [s for s in self._steps(parts).values() if s not in self.ended]
            step = max(steps, key=score, default=parts)
            if score(step) <= score(parts):
                return parts
            parts = step

    def _promising(self) -> list[Parts]:
        """The best combination, and those that are the best for drawn effects and may be faster or
        slower; if there are none, steps from the best one that were never tried. Empty if there are
        none of these either."""
        best = self.best(self.effects.mean)
        found = dict.fromkeys([best])
        for _ in range(DRAWS_FOR_EACH * self.room):
            if len(found) < self.room:
                drawn = self.best(self.effects.drawn(), [best])
                if self.effects.step(drawn, best)[1] > SETTLED:
                    found[drawn] = None
        tried = {parts for session in self.sessions for parts in session} | self.ended
        if len(found) == 1:
            found |= dict.fromkeys(s for s in self._steps(best).values() if s not in tried)
        asked = [*filter(None, found)][: self.room]
        return asked if len(asked) > 1 or not tried.issuperset(asked) else []

    def _play(self, combinations: Sequence[Parts]) -> None:
        found = self.measure(combinations)
        self.ended |= {parts for parts in combinations if parts not in found}
        self.learn(found)

    def learn(self, session: Mapping[Parts, float]) -> None:
        """Takes in what a session has measured."""
        self.sessions.append(session)
        self.effects.learn(session, self.noise)


def beside(exploration: Exploration, best: Parts) -> dict[str, Interval]:
    """By technique, the throughput of its step from ``best`` over that of ``best``, with its 95 %
    interval, for techniques that some combinations of a session had and others had not."""
    found = {}
    for part, step in exploration.space.steps(best).items():
        count = sum(
            len({part in parts for parts in session}) > 1 for session in exploration.sessions
        )
        if count:
            middle, deviation = exploration.effects.step(step, best)
            half = student(0.975, FREEDOM) * deviation
            found[part] = Interval(
                median=exp(middle), low=exp(middle - half), high=exp(middle + half), samples=count
            )
    return found


def regret(exploration: Exploration, best: Parts | Interval) -> Interval:
    """How much faster than ``best`` any other combination could still be, with a 95 % interval:
    the best combination for each of many drawn effects, over ``best``.

    A bundle, which is no sum of techniques, is given as its measured throughput over the baseline's.
    """
    effects, found = exploration.effects, []
    begin = [] if isinstance(best, Interval) else [best]
    for _ in range(DRAWS):
        drawn = effects.drawn()
        other = exploration.best(drawn, begin)
        if isinstance(best, Interval):
            own = effects.random.normal(log(best.median), error_of(best))
        else:
            own = effects.speed(best, drawn)
        found.append(max(0.0, effects.speed(other, drawn) - own))
    low, middle, high = np.exp(np.quantile(found, [0.025, 0.5, 0.975]))
    tried = {parts for session in exploration.sessions for parts in session}
    return Interval(median=float(middle), low=float(low), high=float(high), samples=len(tried))


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
