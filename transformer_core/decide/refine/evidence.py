"""What is known of every comparison: its first round, and what was added since."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from schemas.results import PairedRun, Session
from transformer_core.decide.comparisons.compare import speed_ratios
from transformer_core.decide.refine.outlook import Costs, Standing
from transformer_core.decide.statistics.simultaneous import (
    simultaneous_ratios,
    variance_between_sessions,
)
from transformer_core.decide.statistics.verdicts import judge
from transformer_core.measure.turns.comparison import of_two
from transformer_core.measure.turns.session_ratio import LogRatio, session_ratio


@dataclass
class Pair:
    """A comparison, as its first round left it and with what was added."""

    first: PairedRun
    weight: float = 1.0
    stuck: str = ""
    """Why nothing can be added."""
    added: list[Session] = field(init=False, default_factory=list)
    stints: set[int] = field(init=False, default_factory=set)
    """Those that added something; after each of them the verdict was looked at."""
    ratios: list[LogRatio] = field(init=False)
    """Of every session, in order."""
    costs: Costs | None = field(init=False, default=None)
    """What a session takes, as the last one says; null without a session."""

    def __post_init__(self) -> None:
        self.ratios = speed_ratios(self.first)
        self.others = list(self.first.others)
        if self.first.sessions:
            self.costs = _costs(self.first.sessions[-1], 2 + len(self.others))

    @property
    def reference(self) -> str:
        return self.first.reference

    @property
    def variant(self) -> str:
        return self.first.variant

    @property
    def looks(self) -> int:
        """How often its verdict has decided what is measured, the next time included: once after
        the first round, and once after each stint."""
        return 1 + len(self.stints)

    def add(self, session: Session, stint: int) -> None:
        """Add a session of it and perhaps others."""
        alone = of_two(session, self.reference, self.variant)
        self.added.append(alone)
        self.stints.add(stint)
        self.ratios.append(session_ratio(alone.rounds, self.reference, self.variant))
        self.costs = _costs(session, len(session.sides))
        names = (side.name for side in session.sides[1:] if side.name != self.variant)
        self.others += [name for name in names if name not in self.others]

    def record(self) -> PairedRun:
        """The record of all of it."""
        return self.first.model_copy(
            update={
                "sessions": [*self.first.sessions, *self.added],
                "others": self.others,
                "looks": self.looks,
                "seconds": self.first.seconds + sum(session.seconds for session in self.added),
            }
        )


def standings(pairs: Iterable[Pair], margin: float) -> list[Standing]:
    """Where every comparison stands that has a ratio, as the report is going to say it."""
    timed = [pair for pair in pairs if pair.first.status == "ok"]
    ratios = [pair.ratios for pair in timed]
    between = variance_between_sessions(ratios) if timed else 0.0
    intervals = simultaneous_ratios(ratios, [pair.looks for pair in timed])
    return [
        Standing(
            reference=pair.reference,
            variant=pair.variant,
            weight=pair.weight,
            ratio=interval,
            verdict=judge("throughput", interval, margin, len(pair.ratios)).verdict,
            variance=_variance(pair.ratios, between),
            looks=pair.looks,
            sessions=len(pair.ratios),
            together=len(timed),
            of_a_round=fmean(ratio.error**2 * ratio.pairs for ratio in pair.ratios),
            between=between,
            costs=pair.costs,
        )
        for pair, interval in zip(timed, intervals, strict=True)
        if pair.costs is not None
    ]


def _variance(ratios: Sequence[LogRatio], between: float) -> float:
    """Of the weighted mean of the sessions."""
    each = [between + ratio.error**2 for ratio in ratios]
    return 1 / sum(1 / one for one in each) if min(each) > 0 else 0.0


def _costs(session: Session, sides: int) -> Costs:
    return Costs(
        start=max(0.0, session.seconds - session.rounds_seconds) / sides,
        round=session.rounds_seconds / len(session.rounds) / sides,
    )


def weights(
    pairs: Iterable[PairedRun],
    claimed: Sequence[tuple[str, str]],
    baseline: str,
    certified: Mapping[str, bool],
) -> dict[tuple[str, str], float]:
    """How much each verdict matters, by variant and reference.

    Twice as much where a claim rests on it, and where the variant may be a part of the best
    combination: beside the baseline, and perhaps faster. A quarter where it counts for nothing,
    since one side has no certificate that it trains the same model.
    """
    found = {}
    for pair in pairs:
        weight = 1.0
        if (pair.variant, pair.reference) in claimed:
            weight *= 2
        if pair.reference == baseline and _perhaps_faster(pair):
            weight *= 2
        if not (certified[pair.variant] and certified[pair.reference]):
            weight /= 4
        found[pair.variant, pair.reference] = weight
    return found


def _perhaps_faster(pair: PairedRun) -> bool:
    ratios = speed_ratios(pair)
    return bool(ratios) and max(ratio.estimate + 2 * ratio.error for ratio in ratios) > 0
