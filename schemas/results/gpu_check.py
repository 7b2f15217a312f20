"""GPU checks, all in one run: results/gpu_check/."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Elapsed, Many, Measured, Proportion, Status
from schemas.results.machine import Hardware

Outcome = Literal["held", "not_held", "unsupported", "failed", "not_run"]
"""The expectation holds or does not; this machine does not support it; it failed with an error; or
its job has left no result yet."""


class GpuTest(Schema):
    """One test that did not pass."""

    name: str
    """File and function."""
    text: str
    """Output of the test."""


class GpuTests(Schema):
    """results/gpu_check/tests.json: the tests that need a GPU."""

    status: Status
    """Whether they ran."""
    reason: str | None
    """Why they did not run."""
    passed: Many
    """Tests that passed."""
    failed: list[GpuTest]
    """Failed tests, with the end of their output."""
    skipped: list[GpuTest]
    """Skipped tests, with the reason."""
    seconds: Elapsed | None
    """Total time; null if none ran."""


class AttentionTruth(Schema):
    """Behaviour of one attention backend in one case."""

    backend: str
    """model.attention.backend."""
    masked: bool
    """Whether padding is masked."""
    dropout: Proportion
    """Requested fraction of dropped weights."""
    status: Status
    """ok, or unsupported if no kernel of the backend can run the case."""
    reason: str | None
    """Why the status is not ok."""
    kernels: list[str]
    """Kernels that ran, longest first."""
    dropped: Proportion | None
    """Actual fraction of dropped weights; null without dropout."""
    error: Measured | None
    """Norm of the difference from a 64-bit computation, over the norm of the latter; null with
    dropout."""
    finite: bool | None
    """Whether values and gradients are finite, even for a row whose keys are all masked."""
    seconds: Elapsed | None
    """Time of a forward and a backward pass."""


class AttentionTruths(Schema):
    """results/gpu_check/attention.json: which kernels compute attention, and what they drop."""

    status: Status
    """Whether a device was available for it."""
    reason: str | None
    """Why the status is not ok."""
    dtype: str
    """Type of queries, keys and values."""
    shape: list[Many]
    """[b, h, n, k] of the queries."""
    cases: list[AttentionTruth]
    """Every backend, with and without mask and dropout."""


class DeviceFact(Schema):
    """One environment fact, other than the device itself, that should hold."""

    name: str
    """Name of the fact."""
    expected: str
    """The expectation, in a sentence."""
    status: Status
    """Whether it could be checked."""
    holds: bool | None
    """Whether it holds; null if it could not be checked."""
    found: str
    """The finding."""
    reason: str | None
    """Why it could not be checked."""


class DeviceFacts(Schema):
    """results/gpu_check/device.json: NVML, NCCL, compilation, and all versions."""

    facts: list[DeviceFact]
    """Facts in the order of the report."""
    versions: dict[str, str]
    """Builds, packages and the environment variables read by CUDA libraries."""


class LogEnd(Schema):
    """The end of a job's log."""

    file: str
    """Path of the full log."""
    text: str
    """Its last lines."""


class Check(Schema):
    """One line of the report."""

    name: str
    """Name of the check."""
    expected: str
    """The expectation, in a sentence."""
    outcome: Outcome
    """Whether it holds."""
    found: str
    """The finding, with numbers."""
    reason: str | None
    """Why it does not hold, or could not be checked."""
    files: list[str]
    """Files with full details, relative to the results folder."""


class GpuCheck(Schema):
    """results/gpu_check/checks.json."""

    checks: list[Check]
    """Checks in the order of the report."""
    hardware: Hardware
    """The machine."""
    packages: dict[str, str]
    """Versions of the packages that shape the results."""
    commit: str | None
    """Git commit of the code."""
    logs: list[LogEnd]
    """Ends of the logs of all jobs."""
