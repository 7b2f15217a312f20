"""The test of the comparison protocol itself: results/self_test/."""

from schemas.base import Schema
from schemas.config.measurement import Comparing
from schemas.results.common import Amount, Elapsed, Few, Many, Measured, Proportion
from schemas.results.comparisons import Session, Verdict
from schemas.results.runs import Provenance


class SelfTestRun(Schema):
    """results/self_test/sessions.json: one run spec under several names, some slowed down."""

    reference: str
    """Name of the side that the others are compared with."""
    sessions_each: Few
    """Sessions per comparison of each kind."""
    comparing: Comparing
    """The protocol."""
    sessions: list[Session]
    """All sessions; their sides record how much they are slowed down."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this record comes from."""


class Share(Schema):
    """A count among a number of comparisons, with the 95 % interval of the probability."""

    count: Many
    """The count."""
    total: Many
    """The total."""
    low: Proportion
    """Lower end of the interval (Clopper and Pearson, 1934)."""
    high: Proportion
    """Upper end."""


class SelfTestKind(Schema):
    """All comparisons of a side slowed down by one amount, or not at all."""

    planted: Amount
    """Fraction by which its steps are slowed down; 0 for the same run spec under two names."""
    expected: Measured
    """The expected ratio of throughputs."""
    ratio: Measured
    """Median of the measured ratios."""
    verdicts: dict[Verdict, Many]
    """Comparisons by verdict."""
    covered: Share
    """Comparisons whose interval contains the expected ratio."""
    called_different: Share
    """Comparisons called FASTER or SLOWER: false alarms for equal sides, otherwise detections."""
    wrong: Many
    """Comparisons with a false verdict: different for equal sides, FASTER for a slower one, SAME
    for a difference beyond the margin."""
    required: str
    """The requirement, in a sentence; empty if there is none."""
    holds: bool
    """Whether the requirement is met."""


class SelfTestReport(Schema):
    """results/self_test/report.json: results of the protocol with known truth."""

    holds: bool
    """Whether all requirements are met."""
    reason: str
    """The result in a sentence."""
    kinds: list[SelfTestKind]
    """Equal sides, and each planted slow-down."""
    comparisons_together: Many
    """Number of comparisons whose intervals hold at once: as many as in a study."""
    error_within: Amount
    """Median standard error of the logarithm of a session's ratio, from its windows."""
    deviation_between: Amount
    """Standard deviation of that logarithm between sessions, beyond the error."""
    foreign_share: Amount | None
    """Fraction of the CPUs used by other processes, median over sessions."""
    margin: Amount
    """Ratios up to 1 + margin are the same."""
    sessions_each: Few
    """Sessions of a comparison."""
    comparing: Comparing
    """The protocol."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this record comes from: command, machine, versions."""
