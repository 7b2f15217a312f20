"""Chooses which comparisons to measure next.

Among those that can be decided in the remaining time, it takes the one with the highest importance
per second of expected time; if there are none, the most important. Other comparisons with the same
reference that also need these sessions take turns with it: the reference is started and timed once
for all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log, sqrt
from statistics import fmean

from scipy import special

from schemas.results import Interval, LogRatio, Pair, PairedRun, Session, Verdict
from transformer_core.decide.intervals import (
    CONFIDENCE,
    between_sessions,
    part_of_look,
    simultaneous_ratios,
)
from transformer_core.decide.verdicts import judge
from transformer_core.measure.comparison import of_two

SPARE = 1.2
"""Safety factor on the amount of measuring that would suffice if the ratio is where it appears
to be."""
GROWTH = 3
"""Largest share of the sessions so far that is added before the next look at the verdict: little is lost if
the ratio is not where it appeared to be."""
LEAST_GROWTH = 0.25
"""Least share of the sessions so far that is added before the next look: every look widens the
interval, and one session more hardly narrows it."""


@dataclass(frozen=True)
class Costs:
    """Duration of a session, per side, based on the last one."""

    start: float  # seconds before its first round and after its last
    round: float  # seconds of a round

    def session(self, sides: int, rounds: int) -> float:
        """Seconds of a session with this many sides and rounds."""
        return sides * (self.start + rounds * self.round)


@dataclass(frozen=True)
class Standing:
    pair: Pair
    weight: float  # importance of its verdict
    ratio: Interval
    verdict: Verdict | None
    variance: float  # variance of the logarithm of the ratio, from rounds and sessions
    looks: int  # number of times its verdict has decided whether it continues, including this time
    sessions: int
    together: int  # number of comparisons in the study whose intervals hold at once
    of_a_round: float  # variance of the logarithm of the ratio of one round
    between: float  # variance between sessions
    costs: Costs

    @property
    def decided(self) -> bool:
        return self.verdict not in (None, "UNDECIDED")


WORTH_JOINING = 0.5
"""Minimum fraction of the leading comparison's sessions that another must need in order to join."""
FINEST = 1e-6  # least distance of a logarithm from a decision, even without a margin
LONGEST = 8  # maximum rounds of a session, as a multiple of the minimum


@dataclass(frozen=True)
class Limits:
    """The study's settings for its comparisons."""

    margin: float
    rounds_least: int
    together: int  # sides running at the same time

    def rounds(self, standing: Standing) -> int:
        """The most informative number of rounds per session for a given time: many if startup is
        long and rounds vary, few if sessions differ (Cochran, Sampling Techniques, 1977, section
        10.6)."""
        most, costs = LONGEST * self.rounds_least, standing.costs
        if standing.between <= 0 or costs.round <= 0:
            return most
        rounds = sqrt(standing.of_a_round / standing.between * costs.start / costs.round)
        return min(max(self.rounds_least, round(rounds)), most)

    def sessions(self, standing: Standing) -> int:
        """Approximate number of additional sessions that decide a comparison."""
        of_session = standing.between + standing.of_a_round / self.rounds(standing)
        if standing.variance <= 0 or of_session <= 0:
            return 1
        share = 1 - CONFIDENCE ** (1 / standing.together)
        # Half the width of an interval after the next look, in standard errors.
        width = float(special.ndtri(1 - share * part_of_look(standing.looks + 1) / 2))
        error = distance(standing.ratio.median, self.margin) / width
        return max(1, ceil((SPARE / error**2 - 1 / standing.variance) * of_session))

    def seconds(self, standing: Standing) -> float:
        """Approximate duration of these sessions, with the reference as the only other side."""
        return self.sessions(standing) * standing.costs.session(2, self.rounds(standing))


@dataclass(frozen=True)
class Plan:
    """The next sessions to run before verdicts are checked again."""

    reference: str
    variants: tuple[str, ...]
    sessions: int
    rounds: int
    session_seconds: float  # approximate duration of each session


def next_plan(standings: Iterable[Standing], left: float, limits: Limits) -> Plan | None:
    """The best use of the next ``left`` seconds; None if nothing is undecided, or if no session
    fits."""
    waiting = [
        standing
        for standing in standings
        if not standing.decided and standing.costs.session(2, limits.rounds_least) <= left
    ]
    if not waiting:
        return None
    if soon := [standing for standing in waiting if limits.seconds(standing) <= left]:
        waiting = soon
        lead = max(soon, key=lambda standing: standing.weight / limits.seconds(standing))
    else:
        lead = max(waiting, key=lambda s: (s.weight, -limits.seconds(s)))
    # The others that join it, most important first.
    least = WORTH_JOINING * limits.sessions(lead)
    others = [
        standing
        for standing in waiting
        if standing is not lead
        and standing.pair.reference == lead.pair.reference
        and limits.sessions(standing) >= least
    ]
    others.sort(key=lambda standing: -standing.weight / limits.seconds(standing))
    crew = [lead, *others][: limits.together - 1]
    sides, rounds = 1 + len(crew), limits.rounds(lead)
    while sides > 2 and lead.costs.session(sides, rounds) > left:
        sides -= 1
    while rounds > limits.rounds_least and lead.costs.session(sides, rounds) > left:
        rounds -= 1
    seconds = lead.costs.session(sides, rounds)
    sessions = max(limits.sessions(lead), ceil(LEAST_GROWTH * lead.sessions))
    sessions = min(sessions, GROWTH * lead.sessions, int(left // seconds))
    return Plan(
        reference=lead.pair.reference,
        variants=tuple(standing.pair.variant for standing in crew[: sides - 1]),
        sessions=max(1, sessions),
        rounds=rounds,
        session_seconds=seconds,
    )


def distance(ratio: float, margin: float) -> float:
    """Distance of a ratio's logarithm from the nearest decision boundary."""
    middle, edge = abs(log(ratio)), log(1 + margin)
    return max(middle, edge - middle, FINEST)


@dataclass
class SoFar:
    """A comparison: its first round plus added sessions."""

    first: PairedRun
    weight: float = 1.0
    stuck: str = ""  # why no sessions can be added
    added: list[Session] = field(init=False, default_factory=list)
    stints: set[int] = field(init=False, default_factory=set)
    """The batches that added sessions; the verdict was checked after each."""
    ratios: list[LogRatio] = field(init=False)  # ratios of all sessions, in order
    costs: Costs | None = field(init=False, default=None)
    """Duration of a session, based on the last one; null without a session."""

    def __post_init__(self) -> None:
        self.ratios = self.first.ratios
        self.others = list(self.first.others)
        if self.first.sessions:
            self.costs = _costs(self.first.sessions[-1], 2 + len(self.others))

    @property
    def pair(self) -> Pair:
        return self.first.pair

    @property
    def looks(self) -> int:
        """Number of times its verdict has decided what is measured, including the next: once
        after the first round, and once after each batch."""
        return 1 + len(self.stints)

    def add(self, session: Session, stint: int) -> None:
        self.added.append(of_two(session, self.pair))
        self.stints.add(stint)
        self.ratios.append(session.ratio(self.pair))
        self.costs = _costs(session, len(session.sides))
        names = (side.name for side in session.sides[1:] if side.name != self.pair.variant)
        self.others += [name for name in names if name not in self.others]

    def record(self) -> PairedRun:
        return self.first.model_copy(
            update={
                "sessions": [*self.first.sessions, *self.added],
                "others": self.others,
                "looks": self.looks,
                "seconds": self.first.seconds + sum(session.seconds for session in self.added),
            }
        )


def standings(pairs: Iterable[SoFar], margin: float) -> list[Standing]:
    """The state of every comparison that has a ratio, as the report will show it."""
    timed = [pair for pair in pairs if pair.first.status == "ok"]
    ratios = [pair.ratios for pair in timed]
    between = {name: each.variance for name, each in between_sessions(ratios).items()}
    intervals = simultaneous_ratios(ratios, [pair.looks for pair in timed])
    return [
        Standing(
            pair=pair.pair,
            weight=pair.weight,
            ratio=interval,
            verdict=judge("throughput", interval, margin, len(pair.ratios)).verdict,
            variance=_variance(pair.ratios, between[pair.pair.reference]),
            looks=pair.looks,
            sessions=len(pair.ratios),
            together=len(timed),
            of_a_round=fmean(ratio.error**2 * ratio.pairs for ratio in pair.ratios),
            between=between[pair.pair.reference],
            costs=pair.costs,
        )
        for pair, interval in zip(timed, intervals, strict=True)
        if pair.costs is not None
    ]


def _variance(ratios: Sequence[LogRatio], between: float) -> float:
    """Variance of the weighted mean of the sessions."""
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
) -> dict[Pair, float]:
    """The importance of each verdict.

    Double if a claim depends on it, and if the variant may be part of the best combination:
    compared with the baseline, and possibly faster. A quarter if the comparison does not count
    because one side lacks a certificate that it trains the same model.
    """

    def weight(run: PairedRun) -> float:
        perhaps_faster = any(ratio.estimate + 2 * ratio.error > 0 for ratio in run.ratios)
        return (
            (2.0 if run.pair in claimed else 1.0)
            * (2.0 if run.reference == baseline and perhaps_faster else 1.0)
            * (1.0 if certified[run.variant] and certified[run.reference] else 0.25)
        )

    return {run.pair: weight(run) for run in pairs}
