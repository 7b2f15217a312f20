"""Counting how cases end."""

import time
from collections import Counter
from dataclasses import dataclass, field

from schemas.results.faults import FAULTS, FaultCase, FaultCounts, FaultRecord, Verdict

_KEPT = 100
_LONGEST = 2_000


@dataclass
class Tally:
    """The cases of a harness so far."""

    harness: str
    seed: int
    started: float = field(default_factory=time.monotonic)
    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    failures: list[FaultCase] = field(default_factory=list)

    def add(self, kind: str, number: int, verdict: Verdict, said: str) -> None:
        """One more case."""
        self.counts.setdefault(kind, Counter())[verdict] += 1
        if verdict in FAULTS and len(self.failures) < _KEPT:
            case = FaultCase(kind=kind, number=number, verdict=verdict, said=said[:_LONGEST])
            self.failures.append(case)

    def record(self) -> FaultRecord:
        """What the harness writes."""
        return FaultRecord(
            harness=self.harness,
            seed=self.seed,
            seconds=time.monotonic() - self.started,
            counts=[
                FaultCounts.model_validate({"kind": kind, **counts})
                for kind, counts in sorted(self.counts.items())
            ],
            failures=self.failures,
        )
