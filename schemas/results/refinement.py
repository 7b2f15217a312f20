"""How the study's time was spent on its comparisons: results/refinement.json."""

from math import ceil

from schemas.base import Schema
from schemas.results.common import Elapsed, Few


class Stint(Schema):
    """Sessions added to comparisons in one batch, before their verdicts were checked again."""

    reference: str
    """The common reference."""
    variants: list[str]
    """The variants that took turns with it."""
    sessions: Few
    """Number of sessions added."""
    seconds: Elapsed
    """Time that they took."""
    reason: str = ""
    """Why it ended early, if a side could not continue."""


class Unsettled(Schema):
    """An undecided comparison, and what would settle it."""

    variant: str
    """Name of the variant."""
    reference: str
    """Name of the reference."""
    seconds: Elapsed | None
    """Approximate additional measuring time, if the ratio is where it appears to be; null if
    more time does not help."""
    reason: str = ""
    """Why more time does not help."""


class Refinement(Schema):
    """How the study's time limit (its field ``time``) was used."""

    asked_seconds: Elapsed
    """Time limit of the study."""
    began_at_seconds: Elapsed
    """Time spent before the comparisons continued."""
    kept_seconds: Elapsed
    """Time reserved for later jobs: verdicts, the search, the report."""
    ended_at_seconds: Elapsed
    """Time spent by the end of the last comparison."""
    stints: list[Stint]
    """Batches added by this job; earlier sessions are kept."""
    unsettled: list[Unsettled]
    """Undecided comparisons, soonest to be settled first."""

    def next_seconds(self, spent: float) -> float:
        """A time limit, in whole minutes, that would probably settle one more comparison, given
        the seconds already spent; twice the current limit if none is known to."""
        times = [one.seconds for one in self.unsettled if one.seconds is not None]
        more = min(times, default=self.asked_seconds)
        return 60.0 * ceil((max(self.asked_seconds, spent + self.kept_seconds) + more) / 60)
