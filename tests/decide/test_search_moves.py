"""The search among combinations with known true speeds."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from schemas.results import Interval
from transformer_core.decide.search_moves import Exploration, Parts, Space, regret, starts

TECHNIQUES = tuple("abcdefghij")
EXCLUSIVE = (("a", "b"), ("c", "d"), ("c", "e"))
BETWEEN, WITHIN = 0.005, 0.004
"""Standard deviations of the logarithm of a ratio: from session to session, and within one."""
EXCLUDED = {
    name: frozenset(other for pair in EXCLUSIVE if name in pair for other in pair if other != name)
    for name in TECHNIQUES
}


def space(order: Sequence[str] = TECHNIQUES, needs: dict[str, str] | None = None) -> Space:
    def valid(parts: Parts) -> bool:
        return all(needed in parts for part, needed in (needs or {}).items() if part in parts)

    return Space(tuple(order), EXCLUDED, valid, len(TECHNIQUES))


class Study:
    """Techniques with own effects, and joint effects of a third of all pairs."""

    def __init__(self, seed: int) -> None:
        self.random = random = np.random.default_rng(seed)
        self.alone = {name: random.normal(0.02, 0.08) for name in TECHNIQUES}
        pairs = combinations(TECHNIQUES, 2)
        self.beside = {pair: random.normal(0, 0.06) for pair in pairs if random.random() < 0.3}
        self.sessions = 0
        self.asked: set[Parts] = set()

    def truth(self, parts: Parts) -> float:
        """Logarithm of the throughput over that of the baseline."""
        both = sum(effect for pair, effect in self.beside.items() if {*pair} <= parts)
        return sum(self.alone[part] for part in parts) + both

    def measure(self, asked: Sequence[Parts]) -> dict[Parts, float]:
        self.sessions += 1
        self.asked |= {*asked}
        baseline = self.random.normal(0, BETWEEN)
        noise = np.hypot(BETWEEN, WITHIN)
        return {one: self.truth(one) - baseline + self.random.normal(0, noise) for one in asked}

    def best(self) -> float:
        """The true speed of the best combination."""
        every = (
            frozenset(parts)
            for count in range(len(TECHNIQUES) + 1)
            for parts in combinations(TECHNIQUES, count)
        )
        return max(self.truth(p) for p in every if all(EXCLUDED[part].isdisjoint(p) for part in p))

    def search(self, sessions: int = 8) -> tuple[float, Interval]:
        """How much slower the result is than the best, and the search's own interval for it."""
        seen = {name: (self.alone[name] + self.random.normal(0, BETWEEN)) for name in TECHNIQUES}
        order = sorted(TECHNIQUES, key=lambda name: -seen[name])
        bundle = space(order).filled(map(str, self.random.permutation(TECHNIQUES)[:4]))
        turns = {frozenset(name): effect for name, effect in seen.items()}
        turns[bundle] = self.truth(bundle) + self.random.normal(0, BETWEEN)
        made = Exploration(
            space(order),
            self.measure,
            8,
            lambda: self.sessions < sessions,
            {name: (effect, BETWEEN) for name, effect in seen.items()},
            [turns],
        )
        made.run(starts(made.space, seen, [bundle], 4))
        found = max((parts for session in made.seen for parts in session), key=made.rank)
        said = regret(made, found, float(np.hypot(BETWEEN, WITHIN)))
        return self.best() - self.truth(found), said


@pytest.fixture(scope="module")
def searches():
    """How much each of 40 searches loses, and its own interval for that."""
    return [Study(seed).search() for seed in range(40)]


def test_its_result_is_at_most_three_percent_slower_than_the_best(searches):
    assert max(lost for lost, _ in searches[:10]) <= np.log(1.03)


def test_its_interval_holds_how_much_is_lost(searches):
    assert np.mean([lost <= np.log(said.high) for lost, said in searches]) >= 0.9
    hurried = [Study(seed).search(sessions=2)[1].high for seed in range(10)]
    patient = [said.high for _, said in searches[:10]]
    assert np.median(hurried) > np.median(patient) + 0.05, "what was not tried may be better"


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


def test_it_starts_from_all_techniques_from_those_that_pay_alone_and_from_bundles():
    effects, bundle = {"a": 0.1, "h": 0.2, "d": -0.1}, frozenset("bdf")
    everything, paying, *others = starts(space(), effects, [bundle], 4)
    assert everything == frozenset("acfghij")
    assert paying == frozenset("ah")
    assert others == [frozenset("bdfh"), bundle], "with all that pays and fits, and as it is"


def test_combinations_measured_in_turns_are_not_measured_again():
    study = Study(0)
    turns = {frozenset(name): effect for name, effect in study.alone.items()}
    made = Exploration(space(), study.measure, 8, lambda: False, seen=[turns])
    made.run([frozenset("acf"), frozenset("a"), frozenset("b")])
    assert study.asked == {frozenset("acf")}
    assert made.gains(frozenset("a"), frozenset()) == [study.alone["a"]]


def test_combinations_that_cannot_run_are_left_out():
    truth = {"a": 0.1, "f": 0.2, "g": -0.1}
    asked: list[Parts] = []

    def measure(combos: Sequence[Parts]) -> dict[Parts, float]:
        asked.extend(combos)
        return {c: sum(truth.get(p, 0.0) for p in c) for c in combos if "f" not in c}

    made = Exploration(space("afg"), measure, 3, lambda: len(asked) < 200)
    made.run([frozenset("afg"), frozenset("a")])
    assert max((p for s in made.seen for p in s), key=made.rank) == frozenset("a")
    assert len([parts for parts in asked if parts == frozenset("afg")]) == 1
