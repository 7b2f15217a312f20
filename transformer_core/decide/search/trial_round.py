"""One round of a search: combinations take turns with the baseline in fresh processes."""

from collections.abc import Sequence
from math import exp

from schemas.results import Pair
from schemas.results.search import BASELINE
from transformer_core.decide.search.trials import Bench, Trial
from transformer_core.measure.turns.session import SessionEndedError

FEWEST_TURNS = 5
"""Turns of a round at least: a trimmed mean of fewer leaves nothing out."""


def play_round(bench: Bench, trials: Sequence[Trial], pairs: int, number: int) -> None:
    """Measure ``trials`` in round ``number``, as many at the same time as may be alive.

    Each gets its ratio to the baseline; one that cannot run loses, with its status.
    """
    together = bench.together - 1
    for start in range(0, len(trials), together):
        _session(bench, trials[start : start + together], pairs, f"round-{number}-{start}")
    for trial in trials:
        trial.reached = number


def _session(bench: Bench, trials: Sequence[Trial], pairs: int, name: str) -> None:
    """One session of these trials and the baseline; without those that cannot run."""
    running = {f"trial_{number}": trial for number, trial in enumerate(trials)}
    while running:
        specs = {side: trial.spec for side, trial in running.items()}
        with bench.coordinator() as coordinator:
            try:
                session = bench.sessions(specs, bench.study.comparison, coordinator, name).run(
                    1, lambda rounds, _: len(rounds) >= pairs
                )
            except SessionEndedError as error:
                if error.side == BASELINE:
                    raise
                trial = running.pop(error.side)
                trial.status, trial.reason = error.outcome.status, error.outcome.reason
                continue
        for side, trial in running.items():
            trial.rounds.append(exp(session.ratio(Pair(side, BASELINE)).estimate))
            trial.turns.append((session, side))
        return
