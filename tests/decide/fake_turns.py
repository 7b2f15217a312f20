"""Comparisons of sides with known true ratios, on a clock that only the sides advance."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pair_builders import paired, session, side, window

from schemas.results import Round, Session
from transformer_core.decide.next_sessions import Limits, Plan, SoFar
from transformer_core.decide.refine import KeptStints

START, ROUND = 1.0, 0.05
"""Seconds that a side takes to start, and for a round."""
ROUNDS = 8
LIMITS = Limits(margin=0.02, rounds_least=ROUNDS, together=4)


class FakeTurns:
    """Sides that take turns, and a clock that only they advance."""

    def __init__(
        self, truths: Mapping[str, float], seed: int = 0, noise: float = 0.03, between: float = 0.01
    ) -> None:
        self.truths, self.noise, self.between = truths, noise, between
        self.random = np.random.default_rng(seed)
        self.seconds = 0.0
        self.made: list[tuple[str, ...]] = []

    def now(self) -> float:
        return self.seconds

    def measure(self, plan: Plan, number: int) -> Session:
        """A session of a plan, which takes as long as the plan says."""
        self.made.append(plan.variants)
        return self.session(plan.variants, number, plan.rounds)

    def session(self, variants: Sequence[str], number: int, rounds: int = ROUNDS) -> Session:
        """A session of these variants and their reference."""
        sides = 1 + len(variants)
        seconds = sides * (START + rounds * ROUND)
        self.seconds += seconds
        rates = {"single": np.full(rounds, 100.0)}
        for name in variants:
            ratio = self.truths[name] * np.exp(self.between * self.random.normal())
            noise = np.exp(self.noise * self.random.normal(size=rounds))
            rates[name] = 100.0 * ratio * noise
        return session(
            1.0,
            number,
            sides=[side(name) for name in rates],
            rounds=[
                Round(windows=[window(name, float(rate[n])) for name, rate in rates.items()])
                for n in range(rounds)
            ],
            seconds=seconds,
            rounds_seconds=sides * rounds * ROUND,
        )

    def pairs(self, sessions: int = 2) -> list[SoFar]:
        """The first round of each variant, by itself."""
        found = []
        for name in self.truths:
            first = [self.session([name], number) for number in range(1, sessions + 1)]
            run = paired(variant=name).model_copy(update={"sessions": first, "others": []})
            found.append(SoFar(run))
        return found


def kept_in(folder: Path, pairs: Sequence[SoFar], key: str = "key") -> KeptStints:
    return KeptStints(folder, {pair.pair: key for pair in pairs})
