"""The rounds of a search, by successive halving.

All combinations take turns with the baseline, the better half stays, and the next round measures it
in fresh processes with twice the turns (Karnin, Koren and Somekh, Almost Optimal Exploration in
Multi-Armed Bandits, 2013; Jamieson and Talwalkar, arXiv 1502.07943).
"""

import time
from math import exp

from schemas.results.search import BASELINE
from transformer_core.common.progress import log as progress_log
from transformer_core.measure.turns.session import SessionEndedError
from transformer_core.measure.turns.session_ratio import session_ratio
from transformer_core.search.trials import Bench, Trial

FINAL_SHARE = 0.5
"""Share of the budget that is kept for the final comparison."""
FEWEST_TURNS = 5
"""Turns of a round at least: a trimmed mean of fewer leaves nothing out."""


def halve(bench: Bench, trials: list[Trial], together: int) -> None:
    """Measure all trials, then the better half with twice the turns, and so on until one is left.

    The first round is always made. A trial that cannot run loses, with its status.
    """
    comparing, number, spent = bench.study.comparison, 1, 0.0
    alive = list(trials)
    while len(alive) > 1 or (alive and number == 1):
        reserve = FINAL_SHARE * bench.study.search.budget if bench.study.search else 0.0
        if number > 1 and bench.left() - reserve < 1.2 * spent:
            progress_log.info("search: no time for round %d", number)
            return
        began = time.monotonic()
        pairs = max(FEWEST_TURNS, comparing.pairs * 2 ** (number - 1) // 2)
        for start in range(0, len(alive), together - 1):
            _round(bench, alive[start : start + together - 1], pairs, f"round-{number}-{start}")
        spent = time.monotonic() - began
        alive = sorted(
            (trial for trial in alive if trial.status == "ok"), key=lambda trial: -trial.rounds[-1]
        )
        alive = alive[: -(-len(alive) // 2)]
        number += 1


def _round(bench: Bench, trials: list[Trial], pairs: int, name: str) -> None:
    """One session of these trials and the baseline; without those that cannot run."""
    running = {f"trial_{number}": trial for number, trial in enumerate(trials)}
    while running:
        specs = {side: trial.spec for side, trial in running.items()}
        with bench.desk() as desk:
            try:
                session = bench.sessions(specs, bench.study.comparison, desk, name).run(
                    1, lambda rounds, _: len(rounds) >= pairs
                )
            except SessionEndedError as error:
                if error.side == BASELINE:
                    raise
                trial = running.pop(error.side)
                trial.status, trial.reason = error.outcome.status, error.outcome.reason
                continue
        for side, trial in running.items():
            trial.rounds.append(exp(session_ratio(session.rounds, BASELINE, side).estimate))
            trial.turns.append((session, side))
        return
