"""Do trainings with several seeds reach the same final loss as the reference? Two one-sided t tests on pairs
that share a seed (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987, 657-680). A wide interval decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from schemas.config.measurement import LOOKS
from transformer_core.common.percent import percent

LEVEL = 0.05 / LOOKS
"""Level of each of the two one-sided tests; the interval has the level 1 - 2 * LEVEL. The division
by the number of looks makes all looks together wrong at most once in twenty times (Bonferroni)."""
POWER = 0.95
"""Minimum probability of detecting a difference of twice the margin; with less, there is no
verdict."""


@dataclass(frozen=True)
class FinalLosses:
    """An interval of the mean relative difference of the smoothed final losses, and its power."""

    low: float
    high: float
    margin: float
    learned: float
    """Fraction by which the reference's loss fell; if this is less than the difference to detect,
    the interval means nothing."""
    power: float
    """Probability of detecting a difference of twice the margin, that is, of an interval that lies
    wholly beyond the margin."""

    def __str__(self) -> str:
        wanted = percent(2 * self.margin)
        found = f"a difference of {wanted} is found with probability {self.power:.2f}"
        return f"{self.low:+.1e} to {self.high:+.1e}; {found}"

    @property
    def farthest(self) -> float:
        """The distance from 0 of the farther end of the interval."""
        return max(-self.low, self.high)

    @property
    def undecided(self) -> list[str]:
        """Reasons why the interval allows no verdict; empty if it does."""
        if self.low > self.margin or self.high < -self.margin:
            return []
        wanted = 2 * self.margin
        if self.learned < wanted:
            fell = f"the reference's loss fell by only {percent(self.learned)}"
            return [f"{fell}: training of more steps is needed to find {percent(wanted)}"]
        if self.power < POWER or self.farthest > self.margin:
            return [
                f"the final loss differs by {self.low:+.1e} to {self.high:+.1e}, {self.margin:.1e} "
                f"is allowed: more seeds are needed to find {percent(wanted)}, which this many find with "
                f"probability {self.power:.2f}"
            ]
        return []


def compare_final_losses(
    run: Sequence[Sequence[float]], reference: Sequence[Sequence[float]], margin: float
) -> FinalLosses:
    """Compares the losses of ``run`` and ``reference``: for each of at least two seeds, one number per
    step. The interval has the level 1 - 2 * LEVEL."""
    count = len(run)
    mine, theirs = (np.array([smoothed(losses) for losses in side]) for side in (run, reference))
    differences = (mine - theirs) / theirs
    error = differences.std(ddof=1) / np.sqrt(count)
    half = special.stdtrit(count - 1, 1 - LEVEL) * error
    return FinalLosses(
        low=float(differences.mean() - half),
        high=float(differences.mean() + half),
        margin=margin,
        learned=float(np.mean([1 - smoothed(losses) / losses[0] for losses in reference])),
        power=_power(float(error), count, margin),
    )


def _power(error: float, count: int, margin: float) -> float:
    """The power of the one-sided t test against the margin, from the noncentral t distribution: the
    probability that it detects a true difference of twice the margin, given the standard ``error`` of
    the mean of ``count`` differences."""
    if margin > 1e6 * error:
        return 1.0
    # As scipy.stats.nct.sf, whose module takes a second to import; nan stands for too small a number.
    missed = special.nctdtr(count - 1, margin / error, special.stdtrit(count - 1, 1 - LEVEL))
    return 1 - float(np.nan_to_num(missed))


def smoothed(losses: Sequence[float]) -> float:
    """The mean of the losses over the last third of the steps."""
    return float(np.mean(losses[-max(1, len(losses) // 3) :]))
