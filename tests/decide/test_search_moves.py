"""The search among combinations with known true speeds."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from schemas.results import Interval
from transformer_core.decide.search_effects import Effects, Noise, Parts
from transformer_core.decide.search_moves import Exploration, Space, regret

TECHNIQUES = tuple("abcdefghij")
QUIET = Noise(0.001, 0.001)
EXCLUSIVE = (("a", "b"), ("c", "d"), ("c", "e"))
EXCLUDED = {
    name: frozenset(other for pair in EXCLUSIVE if name in pair for other in pair if other != name)
    for name in TECHNIQUES
}


def space(order: Sequence[str] = TECHNIQUES, needs: dict[str, str] | None = None) -> Space:
    def valid(parts: Parts) -> bool:
        return all(needed in parts for part, needed in (needs or {}).items() if part in parts)

    return Space(tuple(order), EXCLUDED, valid, len(TECHNIQUES))


class Study:
    """Techniques with own effects, and joint effects of a third of all pairs. So many pairs of the
    best techniques are ``clashes``: together they are about a fourth slower."""

    def __init__(self, seed: int, noise: float = 1, clashes: int = 0) -> None:
        self.own, self.common, self.error = noise * 0.005, noise * 0.003, noise * 0.003
        self.random = random = np.random.default_rng(seed)
        self.alone = {name: random.normal(0.02, 0.08) for name in TECHNIQUES}
        pairs = combinations(TECHNIQUES, 2)
        self.beside = {pair: random.normal(0, 0.06) for pair in pairs if random.random() < 0.3}
        best = sorted(sorted(TECHNIQUES, key=lambda name: -self.alone[name])[:6])
        free = [pair for pair in combinations(best, 2) if pair not in EXCLUSIVE]
        for place in random.permutation(len(free))[:clashes]:
            self.beside[free[place]] = -abs(random.normal(0.25, 0.08))
        self.sessions = 0
        self.asked: set[Parts] = set()

    def truth(self, parts: Parts) -> float:
        """Logarithm of the throughput over that of the baseline."""
        both = sum(effect for pair, effect in self.beside.items() if {*pair} <= parts)
        return sum(self.alone[part] for part in parts) + both

    def measure(self, asked: Sequence[Parts]) -> dict[Parts, float]:
        self.sessions += 1
        self.asked |= {*asked}
        common = self.random.normal(0, self.common)
        return {one: self.truth(one) + common + self.random.normal(0, self.own) for one in asked}

    def best(self) -> float:
        """The true speed of the best combination."""
        every = (
            frozenset(parts)
            for count in range(len(TECHNIQUES) + 1)
            for parts in combinations(TECHNIQUES, count)
        )
        return max(self.truth(p) for p in every if all(EXCLUDED[part].isdisjoint(p) for part in p))

    def search(self, sessions: int = 8, room: int = 8) -> tuple[float, Callable[[], Interval]]:
        """How much slower the result is than the best, and what gives the search's own interval for
        it."""
        seen = {name: self.alone[name] + self.random.normal(0, self.error) for name in TECHNIQUES}
        order = sorted(TECHNIQUES, key=lambda name: -seen[name])
        bundle = space(order).filled(map(str, self.random.permutation(TECHNIQUES)[:4]))
        alone = {name: (effect, self.error) for name, effect in seen.items()}
        effects = Effects(tuple(order), alone, np.random.default_rng(1))
        measured = self.truth(bundle) + self.random.normal(0, self.error)
        effects.learn({bundle: measured}, Noise(self.error, 0.0))
        made = Exploration(
            space(order),
            self.measure,
            room,
            lambda: self.sessions < sessions,
            effects,
            Noise(self.own, self.common),
        )
        made.run()
        self.made = made
        found = max((parts for session in made.sessions for parts in session), key=made.rank)
        return self.best() - self.truth(found), partial(regret, made, found)


@pytest.fixture(scope="module")
def searches():
    """How much each of ten searches loses, and its own interval for that."""
    return [(lost, said()) for lost, said in (Study(seed).search() for seed in range(10))]


def test_its_result_is_as_fast_as_the_best_but_for_the_noise(searches):
    assert max(lost for lost, _ in searches) <= np.log(1.01)


def test_its_interval_holds_how_much_is_lost(searches):
    """Also where little is known: after two sessions on a noisy machine. There it holds in 94 % of
    studies, and rounding, which depends on the machine, changes their courses."""
    searching = (Study(seed, noise=10).search(sessions=2) for seed in range(20))
    hurried = [(lost, said()) for lost, said in searching]
    for some, least in ((searches, 0.9), (hurried, 0.8)):
        # Sums in another order differ in their last digits.
        assert np.mean([lost <= np.log(said.high) + 1e-9 for lost, said in some]) >= least
    assert np.mean([lost for lost, _ in hurried]) <= np.log(1.04)
    high = [np.median([said.high for _, said in some]) for some in (hurried, searches)]
    assert high[0] > high[1] + 0.05, "what was not tried may be better"


def test_a_bundle_is_compared_with_the_combinations_of_techniques():
    """A bundle may be the fastest, though it is no sum of techniques."""
    study = Study(1)
    study.search()
    exploration, best = study.made, float(np.exp(study.best()))

    def than(bundle: float) -> Interval:
        near = Interval(median=bundle, low=bundle * 0.999, high=bundle * 1.001, samples=9)
        return regret(exploration, near)

    assert than(1.2 * best).high == 1.0
    slower = than(best / 1.1)
    assert 1.05 < slower.low < 1.1 < 1.05 * slower.median < 1.1 * slower.high


def test_many_short_sessions_find_out_which_techniques_clash():
    """Each session can build on the results of the ones before."""

    def lost(sessions: int, room: int) -> float:
        studies = (Study(seed, noise=5, clashes=2) for seed in range(10))
        return float(np.mean([study.search(sessions, room)[0] for study in studies]))

    assert lost(2, 4) < lost(1, 8)


def test_two_techniques_that_halve_the_speed_together_do_not_mislead_it():
    """A search that blames all pairs of a slow combination alike loses 13 % here."""
    studies = [Study(seed, noise=5) for seed in range(16)]
    for study in studies:
        best = [pair for pair in combinations(TECHNIQUES, 2) if pair not in EXCLUSIVE]
        study.beside[max(best, key=lambda pair: study.alone[pair[0]] + study.alone[pair[1]])] = -0.8
    assert np.mean([study.search(sessions=3, room=4)[0] for study in studies]) < 0.07


def test_a_slow_combination_does_not_make_all_its_pairs_look_bad():
    """Most likely one or two of them are to blame for all of it."""
    effects = Effects(
        tuple("abcdef"), dict.fromkeys("abcdef", (0.1, 0.01)), np.random.default_rng(1)
    )
    effects.learn({frozenset("abcdef"): 0.0}, Noise(0.01, 0.01))
    effects.learn({frozenset("abcde"): 0.5}, Noise(0.01, 0.01))
    drawn = [effects.drawn() for _ in range(400)]
    lost = np.array([[0.2 - effects.speed(frozenset([p, "f"]), e) for p in "abcde"] for e in drawn])
    assert np.mean(lost < 0.1) > 0.6
    assert np.mean(lost.max(axis=1) > 0.25) > 0.8


def test_a_step_swaps_mutually_exclusive_techniques():
    steps = space().steps(frozenset("adf"))
    expected = {"b": "bdf", "c": "acf", "f": "ad", "g": "adfg"}
    assert {name: steps[name] for name in expected} == {
        name: frozenset(parts) for name, parts in expected.items()
    }


def test_dependent_techniques_are_added_and_removed_together():
    needing = space(needs={"g": "f"})
    assert needing.steps(frozenset())["g"] == frozenset("fg")
    assert needing.steps(frozenset("fgh"))["f"] == frozenset("h")
    assert needing.filled("gf") == frozenset("fg")


def exploration(parts: str, alone: dict[str, float], measure: Any, sessions: int) -> Exploration:
    known = {part: (effect, 0.01) for part, effect in alone.items()}
    effects = Effects(tuple(parts), known, np.random.default_rng(1))
    left = iter(range(sessions - 1))
    more = partial(next, left, False)
    return Exploration(space(parts), measure, 4, lambda: more() is not False, effects, QUIET)


def test_it_starts_from_what_pays_alone_and_from_all_that_may_help_at_once():
    asked: list[Parts] = []
    alone = {"a": 0.1, "c": -0.05, "f": 0.0, "g": -0.9}
    exploration("acfg", alone, lambda some: asked.extend(some) or {}, 1).run()
    assert asked[:2] == [frozenset("acf"), frozenset("a")]


def test_it_tries_every_step_from_the_best():
    """Also those that nothing promises: what is known of a technique may be wrong among others."""
    alone = {"a": 0.3, "f": -0.5, "g": -0.5}

    def measure(some: Sequence[Parts]) -> dict[Parts, float]:
        return {one: 0.3 * ("a" in one) + 0.4 * (one == frozenset("ag")) for one in some}

    made = exploration("afg", alone, measure, 6)
    made.run()
    assert {frozenset("ag"), frozenset("af")} <= {p for session in made.sessions for p in session}
    assert made.best(made.effects.mean) == frozenset("ag")


def test_what_a_session_measures_tells_of_combinations_that_took_no_part():
    """Three techniques together are faster than each of them promised, so two of them are as well."""
    effects = Effects(tuple("abc"), dict.fromkeys("abc", (0.1, 0.05)), np.random.default_rng(1))
    before, unsure = effects.step(frozenset("ab"), frozenset("a"))
    assert before == pytest.approx(0.1)
    effects.learn({frozenset("abc"): 0.45}, Noise(0.01, 0.01))
    after, surer = effects.step(frozenset("ab"), frozenset("a"))
    assert after > before
    assert surer < unsure
    drawn = [effects.speed(frozenset("abc"), effects.drawn()) for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(effects.speed(frozenset("abc")), abs=0.002)
    assert np.std(drawn) == pytest.approx(effects.step(frozenset("abc"), frozenset())[1], rel=0.2)


def test_combinations_that_cannot_run_are_left_out():
    truth = {"a": 0.1, "f": 0.2, "g": -0.1}
    asked: list[Parts] = []

    def measure(combos: Sequence[Parts]) -> dict[Parts, float]:
        asked.extend(combos)
        return {c: sum(truth.get(p, 0.0) for p in c) for c in combos if "f" not in c}

    made = exploration("afg", {}, measure, 50)
    made.run()
    assert max((p for s in made.sessions for p in s), key=made.rank) == frozenset("a")
    assert len([parts for parts in asked if parts == frozenset("afg")]) == 1
