"""How the time of a study went into its comparisons: results/refinement.json."""

from math import ceil

from schemas.base import Schema
from schemas.results.common import Elapsed, Few


class Stint(Schema):
    """Sessions that were added to comparisons at a time; then their verdicts were looked at."""

    reference: str
    """The reference of all of them."""
    variants: list[str]
    """The variants that took turns with it."""
    sessions: Few
    """Sessions that were added."""
    seconds: Elapsed
    """What they took."""
    reason: str = ""
    """Why it ended early, if a side could not go on."""


class Unsettled(Schema):
    """A comparison that is undecided, and what would settle it."""

    variant: str
    """Name of the variant."""
    reference: str
    """Name of the reference."""
    seconds: Elapsed | None
    """About how much longer it would have to be measured, if its ratio is where it seems to be;
    null where more time does not help."""
    reason: str = ""
    """Why it does not."""


class Refinement(Schema):
    """What was done with the time that a study has (its field ``time``)."""

    asked_seconds: Elapsed
    """Time of the study."""
    began_at_seconds: Elapsed
    """How much of it was spent when the comparisons began to go on."""
    kept_seconds: Elapsed
    """How much of it was kept for what follows: verdicts, the search, the report."""
    ended_at_seconds: Elapsed
    """How much of it was spent when the last comparison had ended."""
    stints: list[Stint]
    """What this job added; sessions of earlier ones stay."""
    unsettled: list[Unsettled]
    """Comparisons that are undecided, the one that is settled soonest first."""

    def next_seconds(self, spent: float) -> float:
        """A time of the study, in whole minutes, with which one more comparison would probably be
        settled, now that so many seconds are spent; twice its time where none is known to be."""
        times = [one.seconds for one in self.unsettled if one.seconds is not None]
        more = min(times, default=self.asked_seconds)
        return 60.0 * ceil((max(self.asked_seconds, spent + self.kept_seconds) + more) / 60)
