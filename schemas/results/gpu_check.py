"""GPU checks, all in one run: results/gpu_check/."""

from typing import Literal

from schemas.base import Schema
from schemas.results.common import Elapsed, Ending, Many, Measured, Proportion, Status
from schemas.results.machine import Hardware

Outcome = Literal["held", "not_held", "unsupported", "failed", "not_run"]
"""The expectation holds or does not; this machine does not support it; it failed with an error; or
its job has left no result yet."""


class GpuTest(Schema):
    """One test that did not pass."""

    name: str  # file and function
    text: str  # output of the test


class GpuTests(Ending):
    """results/gpu_check/tests.json: the tests that need a GPU."""

    passed: Many  # tests that passed
    failed: list[GpuTest]  # failed tests, with the end of their output
    skipped: list[GpuTest]  # skipped tests, with the reason
    seconds: Elapsed | None  # total time; null if none ran


class AttentionTruth(Ending):
    """Behaviour of one attention backend in one case."""

    backend: str  # model.attention.backend
    masked: bool  # whether padding is masked
    dropout: Proportion  # requested fraction of dropped weights
    kernels: list[str]  # kernels that ran, longest first
    dropped: Proportion | None  # actual fraction of dropped weights; null without dropout
    error: Measured | None  # relative to a 64-bit computation; null with dropout
    finite: bool | None  # values and gradients, even for a row with all keys masked
    seconds: Elapsed | None  # time of a forward and a backward pass


class AttentionTruths(Ending):
    """results/gpu_check/attention.json: which kernels compute attention, and what they drop."""

    dtype: str  # type of queries, keys and values
    shape: list[Many]  # [b, h, n, k] of the queries
    cases: list[AttentionTruth]  # every backend, with and without mask and dropout


class DeviceFact(Schema):
    """One environment fact, other than the device itself, that should hold."""

    name: str
    expected: str  # the expectation, in a sentence
    status: Status  # whether it could be checked
    holds: bool | None  # whether it holds; null if it could not be checked
    found: str  # the finding
    reason: str | None  # why it could not be checked


class DeviceFacts(Schema):
    """results/gpu_check/device.json: NVML, NCCL, compilation, and all versions."""

    facts: list[DeviceFact]  # facts in the order of the report
    versions: dict[str, str]  # builds, packages, environment variables of CUDA libraries


class LogEnd(Schema):
    """The end of a job's log."""

    file: str  # path of the full log
    text: str  # its last lines


class Check(Schema):
    """One line of the report."""

    name: str  # name of the check
    expected: str  # the expectation, in a sentence
    outcome: Outcome  # whether it holds
    found: str  # the finding, with numbers
    reason: str | None  # why it does not hold, or could not be checked
    files: list[str]  # files with full details, relative to the results folder


class GpuCheck(Schema):
    """results/gpu_check/checks.json."""

    checks: list[Check]  # checks in the order of the report
    hardware: Hardware
    packages: dict[str, str]  # versions of the packages that shape the results
    commit: str | None  # git commit of the code
    logs: list[LogEnd]  # ends of the logs of all jobs
