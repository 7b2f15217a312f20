"""How much more a comparison must be measured until it is decided: arithmetic, nothing else.

An interval narrows with the square root of what is measured. It settles something once its reach
is less than its distance: from 1, where it would say FASTER or SLOWER, or to the margin, where it
would say SAME. One of the two is half the margin at least, so no comparison takes for ever.
"""

from dataclasses import dataclass
from math import ceil, log, sqrt

from scipy import stats

from schemas.results import Interval, Verdict
from transformer_core.decide.statistics.medians import CONFIDENCE
from transformer_core.decide.statistics.simultaneous import part_of_look

SPARE = 1.2
"""How much more is measured than would do if the ratio is where it seems to be."""
GROWTH = 3
"""At most so many times as much as there is is measured until the verdict is looked at: where the
ratio is not where it seemed to be, little is lost."""


@dataclass(frozen=True)
class Costs:
    """What a session takes, per side, as the last one did."""

    start: float
    """Seconds until its first round and after its last."""
    round: float
    """Seconds of a round."""

    def session(self, sides: int, rounds: int) -> float:
        """Seconds of a session of so many sides and rounds."""
        return sides * (self.start + rounds * self.round)


@dataclass(frozen=True)
class Standing:
    """Where a comparison stands."""

    reference: str
    variant: str
    weight: float
    """How much its verdict matters."""
    ratio: Interval
    verdict: Verdict | None
    variance: float
    """Variance of the logarithm of the ratio, from rounds and sessions."""
    looks: int
    """How often its verdict has decided whether it goes on, this time included."""
    sessions: int
    together: int
    """Comparisons of the study, whose intervals hold together."""
    of_a_round: float
    """Variance of the logarithm of the ratio of one round."""
    between: float
    """Variance between sessions."""
    costs: Costs

    @property
    def decided(self) -> bool:
        """Whether it has a verdict."""
        return self.verdict not in (None, "UNDECIDED")


def distance(ratio: float, margin: float) -> float:
    """How far the logarithm of a ratio is from the nearest place where nothing is decided."""
    middle, edge = abs(log(ratio)), log(1 + margin)
    return max(middle, edge - middle)


def best_rounds(standing: Standing, least: int, most: int) -> int:
    """Rounds of a session that tell most in a given time: many where starting takes long and rounds
    scatter, few where sessions differ (Cochran, Sampling Techniques, 1977, section 10.6)."""
    costs = standing.costs
    if standing.between <= 0 or costs.round <= 0:
        return most
    rounds = sqrt(standing.of_a_round / standing.between * costs.start / costs.round)
    return min(max(least, round(rounds)), most)


def sessions_needed(standing: Standing, rounds: int, margin: float) -> int:
    """About how many more sessions of so many rounds decide a comparison."""
    of_session = standing.between + standing.of_a_round / rounds
    if standing.variance <= 0 or of_session <= 0:
        return 1
    error = distance(standing.ratio.median, margin) / _quantile(
        standing.looks + 1, standing.together
    )
    return max(1, ceil((SPARE / error**2 - 1 / standing.variance) * of_session))


def seconds_needed(standing: Standing, rounds: int, margin: float) -> float:
    """About how long these sessions take, with the reference as the only other side."""
    return sessions_needed(standing, rounds, margin) * standing.costs.session(2, rounds)


def _quantile(looks: int, together: int) -> float:
    """Half the width of an interval after so many looks, in standard errors."""
    error = 1 - CONFIDENCE ** (1 / max(1, together))
    return float(stats.norm.ppf(1 - error * part_of_look(looks) / 2))
