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
    """Git commit of its runs; null if they have several, or none."""
    device: str
    """The GPUs, or the CPU if there are none."""
    packages: dict[str, str]
    """Versions of the packages that affect results."""
    recommended: list[str] | None = None
    """Parts of the recommended combination, empty for the baseline; null if no search was run."""
    speedup: Interval | None = None
    """Its throughput over that of the baseline."""


class Change(Schema):
    """One quantity of a variant, here and there."""

    variant: str
    """Name of the variant."""
    quantity: Literal["speedup", "throughput", "peak_memory", "traffic"]
    """Ratio of its throughput to that of the baseline, measured side by side; the throughput
    itself, which varies with the machine; its peak memory; bytes sent per step."""
    here: Interval | None
    """The value measured here."""
    there: Interval | None
    """The value measured there."""
    ratio: Interval | None
    """Here over there; null if either is missing."""
    verdict: Verdict | None
    """Verdict on the ratio; null if there is none."""
    reason: str = ""
    """Reason for a missing or UNDECIDED verdict."""


class Lost(Schema):
    """A certificate or status that has changed."""

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
    """The results compared with."""
    same_device: bool
    """Whether both used the same kind of device: only then is a change in throughput a
    regression."""
    throughput_from: Literal["turns", "runs"]
    """Source of the throughputs: the comparisons, in which variants took turns with the
    baseline, over the range of its sessions; or each variant's own run, if one of the folders
    lacks the comparisons."""
    changes: list[Change]
    """Every quantity of the variants present in both."""
    other_specs: list[str]
    """Variants left out because their run specs differ, so that they do not measure the same
    thing."""
    only_here: list[str]
    """Variants only in these results."""
    only_there: list[str]
    """Variants only in the other results."""
    statuses: list[Lost]
    """Runs whose status changed."""
    certificates: list[Lost]
    """Certificates whose status changed."""
    claims: list[Lost]
    """Claims whose verdict changed, with their ids in ``variant``."""
