"""The test of the protocol of comparisons itself: results/self_test/."""

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
    """Sessions that make one comparison of each kind."""
    comparing: Comparing
    """The protocol."""
    sessions: list[Session]
    """All sessions; the sides say by how much they are slowed down."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this comes from."""


class Share(Schema):
    """How many of a number of comparisons, with the 95 % interval of the probability."""

    count: Many
    """How many."""
    total: Many
    """Of how many."""
    low: Proportion
    """Lower end of the interval (Clopper and Pearson, 1934)."""
    high: Proportion
    """Upper end."""


class SelfTestKind(Schema):
    """All comparisons of a side that is slowed down by one share, or not at all."""

    planted: Amount
    """Share by which its steps are longer; 0 for the same thing under two names."""
    expected: Measured
    """The ratio of throughputs that follows."""
    ratio: Measured
    """Median of the ratios that were found."""
    verdicts: dict[Verdict, Many]
    """Comparisons by verdict."""
    covered: Share
    """Comparisons whose interval holds the expected ratio."""
    called_different: Share
    """Comparisons called FASTER or SLOWER: of equal sides a false alarm, else a detection."""
    wrong: Many
    """Comparisons with a verdict that is not true: different where nothing is, FASTER where it is
    slower, SAME where the difference is beyond the margin."""
    required: str
    """What must hold of it, in a sentence; empty where nothing must."""
    holds: bool
    """Whether it does."""


class SelfTestReport(Schema):
    """results/self_test/report.json: what the protocol finds where the truth is known."""

    holds: bool
    """Whether all requirements hold."""
    reason: str
    """The result in a sentence."""
    kinds: list[SelfTestKind]
    """Equal sides, and each planted slow-down."""
    comparisons_together: Many
    """Comparisons whose intervals hold all at once: as many as in a study."""
    error_within: Amount
    """Median standard error of the logarithm of a session's ratio, from its windows."""
    deviation_between: Amount
    """Standard deviation of that between sessions, beyond the error."""
    foreign_share: Amount | None
    """Share of the CPUs that other processes took, median over sessions."""
    margin: Amount
    """Ratios up to 1 + margin are the same."""
    sessions_each: Few
    """Sessions of a comparison."""
    comparing: Comparing
    """The protocol."""
    seconds: Elapsed
    """Time of all sessions."""
    provenance: Provenance
    """Where this comes from: command, machine, versions."""
