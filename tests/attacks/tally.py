"""Counts how the cases of a campaign end."""

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["refused", "same", "silent", "traceback", "unclear", "hung"]
"""refused: a clear error with file, field, value and remedy, or a status with its reason. same: the
result is right. The others are faults of the project: another result without an error (silent), an
uncaught exception (traceback), an error without a remedy (unclear), no end (hung)."""
FAULTS: tuple[Verdict, ...] = ("silent", "traceback", "unclear", "hung")

_KEPT = 100
_LONGEST = 2_000


@dataclass
class Tally:
    """The cases of a campaign so far."""

    campaign: str
    seed: int
    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)  # by kind of case
    failures: list[dict[str, Any]] = field(default_factory=list)
    """The first cases that ended as a fault. Seed and number reproduce a case."""
    began: float = field(default_factory=time.monotonic)

    def add(self, kind: str, number: int, verdict: Verdict, said: str) -> None:
        self.counts.setdefault(kind, Counter())[verdict] += 1
        if verdict in FAULTS and len(self.failures) < _KEPT:
            case = {"kind": kind, "number": number, "verdict": verdict, "said": said[:_LONGEST]}
            self.failures.append(case)

    @property
    def total(self) -> Counter[Verdict]:
        return sum(self.counts.values(), Counter())

    @property
    def faults(self) -> int:
        """Cases that ended as a fault of the project."""
        return sum(self.total[verdict] for verdict in FAULTS)

    def to_json(self) -> str:
        """The whole tally, with the seconds since its beginning."""
        record = {
            "campaign": self.campaign,
            "seed": self.seed,
            "seconds": time.monotonic() - self.began,
            "total": self.total,
            "faults": self.faults,
            "counts": self.counts,
            "failures": self.failures,
        }
        return json.dumps(record, indent=1) + "\n"
