"""The rounds of a search, by successive halving.

All combinations take turns with the baseline, the better half stays, and the next round measures it
in fresh processes with twice the turns (Karnin, Koren and Somekh, Almost Optimal Exploration in
Multi-Armed Bandits, 2013; Jamieson and Talwalkar, arXiv 1502.07943).
"""

import time
from collections.abc import Sequence

from transformer_core.common.progress import log as progress_log
from transformer_core.decide.search.trial_round import FEWEST_TURNS, play_round
from transformer_core.decide.search.trials import Bench, Trial


def halve(bench: Bench, trials: Sequence[Trial]) -> None:
    """Measure all trials, then the better half with twice the turns, and so on until one is left.

    The first round is always made.
    """
    number, spent = 1, 0.0
    alive = list(trials)
    while len(alive) > 1 or (alive and number == 1):
        if number > 1 and bench.left_for_rounds() < 1.2 * spent:
            progress_log.info("search: no time for round %d", number)
            return
        began = time.monotonic()
        pairs = max(FEWEST_TURNS, bench.study.comparison.pairs * 2 ** (number - 1) // 2)
        play_round(bench, alive, pairs, number)
        spent = time.monotonic() - began
        alive = sorted(
            (trial for trial in alive if trial.status == "ok"), key=lambda trial: -trial.rounds[-1]
        )
        alive = alive[: -(-len(alive) // 2)]
        number += 1
