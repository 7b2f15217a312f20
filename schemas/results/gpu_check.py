"""What holds on a GPU, in one go: results/gpu_check/."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Elapsed, Many, Measured, Proportion, Status
from schemas.results.machine import Hardware

Outcome = Literal["held", "not_held", "unsupported", "failed"]
"""What was expected is so, or is not; this machine cannot do it; or it ended with a mistake."""


class GpuTest(Schema):
    """One test that is not passed."""

    name: str
    """File and function."""
    text: str
    """What it said."""


class GpuTests(Schema):
    """results/gpu_check/tests.json: the tests that need a GPU."""

    status: Status
    """Whether they were run."""
    reason: str | None
    """Why not."""
    passed: Many
    """Tests that passed."""
    failed: list[GpuTest]
    """Tests that failed, with the end of what they said."""
    skipped: list[GpuTest]
    """Tests that were skipped, with the reason."""
    seconds: Elapsed | None
    """Time of all; null where none ran."""


class AttentionTruth(Schema):
    """What one backend of attention does in one case."""

    backend: str
    """model.attention.backend."""
    masked: bool
    """Whether padding is masked."""
    dropout: Proportion
    """Share of the weights that was asked to be dropped."""
    status: Status
    """ok, or unsupported where no kernel of the backend can."""
    reason: str | None
    """Why it is not ok."""
    kernels: list[str]
    """Kernels that ran, the longest first."""
    dropped: Proportion | None
    """Share of the weights that was dropped; null where none was to be."""
    error: Measured | None
    """Norm of the difference to a computation in 64 bits, over its norm; null with dropout."""
    finite: bool | None
    """Whether values and gradients are finite, also of a row whose keys are all hidden."""
    seconds: Elapsed | None
    """Time of a forward and a backward pass."""


class AttentionTruths(Schema):
    """results/gpu_check/attention.json: which kernels compute attention, and what they drop."""

    status: Status
    """Whether there is a device for it."""
    reason: str | None
    """Why not."""
    dtype: str
    """Type of queries, keys and values."""
    shape: list[Many]
    """[b, h, n, k] of the queries."""
    cases: list[AttentionTruth]
    """Every backend, with and without mask and dropout."""


class DeviceFact(Schema):
    """One thing beside the device itself that should work."""

    name: str
    """What was looked at."""
    expected: str
    """What should be so, in a sentence."""
    status: Status
    """Whether it could be looked at."""
    holds: bool | None
    """Whether it is so; null where it could not be looked at."""
    found: str
    """What was found."""
    reason: str | None
    """Why it could not be looked at."""


class DeviceFacts(Schema):
    """results/gpu_check/device.json: NVML, NCCL, compiling, and all versions."""

    facts: list[DeviceFact]
    """In the order of the page."""
    versions: dict[str, str]
    """Builds, packages and the variables of the environment that CUDA's libraries read."""


class LogEnd(Schema):
    """The end of a job's log."""

    file: str
    """Where the whole of it stands."""
    text: str
    """Its last lines."""


class Check(Schema):
    """One line of the page."""

    name: str
    """What was looked at."""
    expected: str
    """What should be so, in a sentence."""
    outcome: Outcome
    """Whether it is."""
    found: str
    """What was found, with its numbers."""
    reason: str | None
    """Why it does not hold, or could not be looked at."""
    files: list[str]
    """Where the whole of it stands, below the results."""


class GpuCheck(Schema):
    """results/gpu_check/checks.json."""

    checks: list[Check]
    """In the order of the page."""
    hardware: Hardware
    """The machine."""
    packages: dict[str, str]
    """Versions of the packages that shape the results."""
    commit: str | None
    """Git commit of the code."""
    logs: list[LogEnd]
    """Ends of the logs of all jobs."""
