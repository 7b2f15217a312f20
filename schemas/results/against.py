"""A study against an earlier one, or the same study on another machine: results/against.json."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Interval
from schemas.results.comparisons import Verdict


class Origin(Schema):
    """Where one of the two sets of results comes from."""

    folder: str
    """The folder that was read."""
    study: str
    """Name of the study."""
    commit: str | None
    """Git commit of its runs; null if they are of several, or of none."""
    device: str
    """The GPUs, or the CPU where there are none."""
    packages: dict[str, str]
    """Versions of the packages that shape a result."""
    recommended: list[str] | None = None
    """Parts of the recommended combination, none for the baseline; null where nothing was
    searched."""
    speedup: Interval | None = None
    """Its throughput over that of the baseline."""


class Change(Schema):
    """One quantity of a variant, here and there."""

    variant: str
    """Name of the variant."""
    quantity: Literal["speedup", "throughput", "peak_memory", "traffic"]
    """Ratio of its throughput to that of the baseline, each measured side by side; the throughput
    itself, which moves with the machine; its peak memory; bytes sent per step."""
    here: Interval | None
    """What was measured here."""
    there: Interval | None
    """What was measured there."""
    ratio: Interval | None
    """Here over there; null where one of them is missing."""
    verdict: Verdict | None
    """What the ratio says; null where there is none."""
    reason: str = ""
    """Why there is no verdict, or none but UNDECIDED."""


class Lost(Schema):
    """A certificate or a status that is not what it was."""

    variant: str
    """Name of the variant."""
    here: str
    """Status here."""
    there: str
    """Status there."""


class Against(Schema):
    """results/against.json: these results against others."""

    here: Origin
    """These results."""
    there: Origin
    """The results that they are compared with."""
    same_device: bool
    """Whether both are of the same kind of device: only then is a throughput a regression."""
    throughput_from: Literal["turns", "runs"]
    """Where throughputs come from: the comparisons, in which variants took turns with the baseline,
    over the range of its sessions; or, where one of the folders lacks them, each variant's own
    run."""
    changes: list[Change]
    """Every quantity of the variants that both have."""
    other_specs: list[str]
    """Variants whose run specs differ: they do not measure the same thing and are left out."""
    only_here: list[str]
    """Variants that only these results have."""
    only_there: list[str]
    """Variants that only the others have."""
    statuses: list[Lost]
    """Runs that ended otherwise."""
    certificates: list[Lost]
    """Certificates that say something else."""
    claims: list[Lost]
    """Claims whose verdict changed, by their id in ``variant``."""
