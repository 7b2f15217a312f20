"""Which comparisons the next time goes to.

Of those that can be decided in the time that is left, the one that matters most for each second
that it is expected to take; of the others, the one that matters most. Others with the same
reference that need these sessions too take turns with it: the reference is started and timed once
for all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log, sqrt
from statistics import fmean

from scipy import stats

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

    pair: Pair
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


WORTH_JOINING = 0.5
"""Who needs this share of the sessions of the first, or more, joins in."""
LONGEST = 8
"""A session has at most so many times the least number of rounds."""


@dataclass(frozen=True)
class Limits:
    """What a study says of its comparisons."""

    margin: float
    rounds_least: int
    together: int
    """Sides that are alive at the same time."""

    def rounds(self, standing: Standing) -> int:
        """Rounds of a further session."""
        return best_rounds(standing, self.rounds_least, LONGEST * self.rounds_least)

    def seconds(self, standing: Standing) -> float:
        """About how much more time decides a comparison by itself."""
        return seconds_needed(standing, self.rounds(standing), self.margin)

    def sessions(self, standing: Standing) -> int:
        """About how many more sessions decide it."""
        return sessions_needed(standing, self.rounds(standing), self.margin)


@dataclass(frozen=True)
class Plan:
    """Sessions that are made next, before anybody looks at a verdict again."""

    reference: str
    variants: tuple[str, ...]
    sessions: int
    rounds: int
    session_seconds: float
    """About what each takes."""


def next_plan(standings: Iterable[Standing], left: float, limits: Limits) -> Plan | None:
    """What ``left`` seconds are best spent on first; None if nothing is undecided, or if no session
    fits into them."""
    waiting = [
        standing
        for standing in standings
        if not standing.decided and standing.costs.session(2, limits.rounds_least) <= left
    ]
    if not waiting:
        return None
    soon = [standing for standing in waiting if limits.seconds(standing) <= left]
    if soon:
        lead = max(soon, key=lambda standing: standing.weight / limits.seconds(standing))
    else:
        lead = max(waiting, key=lambda s: (s.weight, -limits.seconds(s)))
    crew = _crew(lead, soon or waiting, limits)
    sides, rounds = 1 + len(crew), limits.rounds(lead)
    while sides > 2 and lead.costs.session(sides, rounds) > left:
        sides -= 1
    while rounds > limits.rounds_least and lead.costs.session(sides, rounds) > left:
        rounds -= 1
    seconds = lead.costs.session(sides, rounds)
    sessions = min(limits.sessions(lead), GROWTH * lead.sessions, int(left // seconds))
    return Plan(
        reference=lead.pair.reference,
        variants=tuple(standing.pair.variant for standing in crew[: sides - 1]),
        sessions=max(1, sessions),
        rounds=rounds,
        session_seconds=seconds,
    )


def _crew(lead: Standing, waiting: Sequence[Standing], limits: Limits) -> list[Standing]:
    """The one that matters most, and those that join in."""
    least = WORTH_JOINING * limits.sessions(lead)
    others = [
        standing
        for standing in waiting
        if standing is not lead
        and standing.pair.reference == lead.pair.reference
        and limits.sessions(standing) >= least
    ]
    others.sort(key=lambda standing: -standing.weight / limits.seconds(standing))
    return [lead, *others][: limits.together - 1]


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


@dataclass
class SoFar:
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
        self.ratios = self.first.ratios
        self.others = list(self.first.others)
        if self.first.sessions:
            self.costs = _costs(self.first.sessions[-1], 2 + len(self.others))

    @property
    def pair(self) -> Pair:
        return self.first.pair

    @property
    def looks(self) -> int:
        """How often its verdict has decided what is measured, the next time included: once after
        the first round, and once after each stint."""
        return 1 + len(self.stints)

    def add(self, session: Session, stint: int) -> None:
        """Add a session of it and perhaps others."""
        alone = of_two(session, self.pair)
        self.added.append(alone)
        self.stints.add(stint)
        self.ratios.append(session.ratio(self.pair))
        self.costs = _costs(session, len(session.sides))
        names = (side.name for side in session.sides[1:] if side.name != self.pair.variant)
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


def standings(pairs: Iterable[SoFar], margin: float) -> list[Standing]:
    """Where every comparison stands that has a ratio, as the report is going to say it."""
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
) -> dict[Pair, float]:
    """How much each verdict matters.

    Twice as much where a claim rests on it, and where the variant may be a part of the best
    combination: beside the baseline, and perhaps faster. A quarter where it counts for nothing,
    since one side has no certificate that it trains the same model.
    """
    found = {}
    for pair in pairs:
        weight = 1.0
        if pair.pair in claimed:
            weight *= 2
        if pair.reference == baseline and _perhaps_faster(pair):
            weight *= 2
        if not (certified[pair.variant] and certified[pair.reference]):
            weight /= 4
        found[pair.pair] = weight
    return found


def _perhaps_faster(pair: PairedRun) -> bool:
    ratios = pair.ratios
    return bool(ratios) and max(ratio.estimate + 2 * ratio.error for ratio in ratios) > 0
