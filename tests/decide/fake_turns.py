"""Comparisons with sides whose true ratios are known, on a clock that the sides move."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pair_builders import paired, session, with_ratios

from schemas.results import Round, Session, Side
from transformer_core.decide.next_sessions import Limits, Plan, SoFar
from transformer_core.decide.refine import KeptStints

START, ROUND = 1.0, 0.05
"""Seconds of a side, to start and for a round."""
ROUNDS = 8
LIMITS = Limits(margin=0.02, rounds_least=ROUNDS, together=4)


class FakeTurns:
    """Sides that take turns, and a clock that only they move."""

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
        """A session of these variants and their reference, the first of all names."""
        sides = 1 + len(variants)
        seconds = sides * (START + rounds * ROUND)
        self.seconds += seconds
        parts = [
            session(
                self.truths[name] * float(np.exp(self.between * self.random.normal())),
                number,
                variant=name,
                noise=np.expm1(self.noise * self.random.normal(size=rounds)),
            )
            for name in variants
        ]
        reference = parts[0].sides[0].name
        merged = [
            Round(
                windows=[
                    window
                    for place, rnd in enumerate(of_all)
                    for window in rnd.windows
                    if window.side != reference or not place
                ]
            )
            for of_all in zip(*(part.rounds for part in parts), strict=True)
        ]
        named: list[Side] = [parts[0].sides[0], *(part.sides[1] for part in parts)]
        merged_session = parts[0].model_copy(
            update={
                "sides": named,
                "seconds": seconds,
                "rounds": merged,
                "rounds_seconds": sides * rounds * ROUND,
            }
        )
        return with_ratios(merged_session)

    def pairs(self, sessions: int = 2) -> list[SoFar]:
        """The first round of each variant, by itself."""
        return [
            SoFar(
                paired(variant=name).model_copy(
                    update={
                        "sessions": [self.session([name], n + 1) for n in range(sessions)],
                        "others": [],
                    }
                )
            )
            for name in self.truths
        ]


def kept_in(folder: Path, pairs: Sequence[SoFar], key: str = "key") -> KeptStints:
    return KeptStints(folder, {pair.pair: key for pair in pairs})
