"""GPU checks, one line each.

Each line states what is expected, what was found, and why an expectation does not hold. It is based
on the results of an ordinary study's jobs, and on the GPU tests and attention kernels that only the
GPU check runs. If the jobs report that this machine lacks support, so does the line.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from schemas.errors import ConfigError
from schemas.results import (
    Capture,
    Comparison,
    LargestBatchResult,
    Pair,
    PairedRun,
    PredictedMemory,
    Prediction,
    Repeat,
    Roofline,
    Status,
)
from schemas.results.gpu_check import (
    AttentionTruths,
    Check,
    DeviceFacts,
    GpuCheck,
    GpuTests,
    LogEnd,
    Outcome,
)
from transformer_core.common.files import write_text
from transformer_core.common.job import Job
from transformer_core.common.percent import percent
from transformer_core.common.progress import log
from transformer_core.common.records import Record, read_as, read_record
from transformer_core.machine.hardware import read_hardware
from transformer_core.machine.provenance import git_commit, package_versions

PRECISIONS = ("single", "tf32", "amp_fp16", "amp_bf16")
REFERENCE = "single"
SLACK = 0.02  # tolerance of a ratio beyond its expected range: the margin of comparisons
DROPPED_BY_CHANCE = 0.01
"""Allowed difference between the actual and the requested dropout share: with some 250,000
weights six standard deviations are 0.004; a share rounded to a sixteenth is 0.0375 off."""
LARGEST_ERROR = 0.02
"""Maximum relative error of attention in bfloat16, which has 8 significant bits."""
LEAST_STEPS, LEAST_SECONDS = 20, 0.8
"""Minimum size of comparison windows; slightly below the requested size, since steps vary."""


def lines(results: Path) -> Iterator[Check]:
    """All lines, in the order of the page, cheap facts first; checks without results say so."""
    for name, section in sections(results):
        try:
            yield from list(section())
        except ConfigError as error:
            reason = str(error).split("\n")[0]
            yield line(name, "Its job has written a result.", "not_run", "", reason)


def sections(results: Path) -> Iterator[tuple[str, Callable[[], Iterable[Check]]]]:
    """The parts that need their own results, by name."""

    def read(file: str, kind: type[Record]) -> Record:
        return read_record(results / file, kind)

    def run(name: str) -> Repeat:
        return read(f"runs/{name}/repeat-1/metrics.json", Repeat)

    def compared() -> Iterator[Check]:
        found: list[Comparison] = read_as(results / "comparisons.json", list[Comparison])
        pairs = {
            one.variant: read_record(results / one.record, PairedRun)
            for one in found
            if one.reference == REFERENCE and one.record
        }
        yield windows(pairs)
        yield from (comparison(pairs, *asked) for asked in COMPARISONS)

    def memory(name: str) -> Check:
        # Reading the run first names a variant that the study does not have.
        ran, predicted = run(name), read("memory/predicted.json", PredictedMemory)
        return against_nvml(name, {p.variant: p for p in predicted.predictions}[name], ran)

    yield "environment", lambda: device(read("gpu_check/device.json", DeviceFacts))
    yield "attention", lambda: attention(read("gpu_check/attention.json", AttentionTruths))
    yield "roofline", lambda: [roofline(read("machine/roofline.json", Roofline))]
    yield "tests", lambda: [tests(read("gpu_check/tests.json", GpuTests))]
    for name in PRECISIONS:
        yield f"training {name}", lambda name=name: [trained(name, run(name))]  # type: ignore[misc]
    yield "comparisons", compared
    for name in PRECISIONS:
        yield f"memory {name}", lambda name=name: [memory(name)]  # type: ignore[misc]
    for path in sorted((results / "memory/largest_batch").glob("[!.]*.json")):  # digests are hidden
        yield path.stem, lambda path=path: [largest_batch(read_record(path, LargestBatchResult))]  # type: ignore[misc]
    for path in sorted((results / "profiles").glob("*/capture.json")):
        yield path.parent.name, lambda path=path: [profile(read_record(path, Capture))]  # type: ignore[misc]


def tests(found: GpuTests) -> Check:
    outcome = outcome_of(found.status, found.passed > 0 and not found.failed)
    # A killed process leaves no output.
    last = {test.name: (test.text.splitlines() or ["no output"])[-1] for test in found.failed}
    failed = (f"{name}: {text}" for name, text in last.items())
    reason = "; ".join(failed) or None if found.status == "ok" else found.reason
    text = f"{found.passed} passed, {len(found.failed)} failed, {len(found.skipped)} skipped"
    expected = "The tests that need a GPU pass."
    return line("tests", expected, outcome, text, reason, "gpu_check/tests.json")


def roofline(found: Roofline) -> Check:
    rates = {rate.format: rate.flops_per_second for rate in found.matrix}
    bf16, fp32 = rates.get("bf16"), rates.get("fp32")
    twice = bf16 is not None and fp32 is not None and bf16 > 2 * fp32
    told = [f"{name} {rate / 1e12:.1f} TFLOP/s" for name, rate in rates.items() if rate]
    told += [f"{m.operation} {m.bytes_per_second / 1e12:.2f} TB/s" for m in found.memory]
    expected = "Matrix products in bfloat16 are more than twice as fast as in 32 bits."
    outcome, text = outcome_of(found.status, twice), ", ".join(told)
    return line("roofline", expected, outcome, text, found.reason, "machine/roofline.json")


def attention(found: AttentionTruths) -> Iterator[Check]:
    """Each backend drops the requested share, and is as exact as its format allows."""
    expected = "Attention by {} drops the requested share, and its values match those in 64 bits."
    file = "gpu_check/attention.json"
    if found.status != "ok":
        outcome = outcome_of(found.status)
        yield line("attention", expected.format("any kernel"), outcome, "", found.reason, file)
        return
    for backend in dict.fromkeys(case.backend for case in found.cases):
        cases = [case for case in found.cases if case.backend == backend]
        ran = [case for case in cases if case.status == "ok"]
        wrong = [
            f"dropped {case.dropped:.4f} of the weights instead of {case.dropout:g}"
            for case in ran
            if case.dropped is not None and abs(case.dropped - case.dropout) > DROPPED_BY_CHANCE
        ]
        wrong += [f"an error of {c.error:.3g}" for c in ran if (c.error or 0.0) > LARGEST_ERROR]
        wrong += ["numbers that are not finite" for case in ran if not case.finite]
        others = sorted({case.reason for case in cases if case.status != "ok" and case.reason})
        outcome = outcome_of("ok" if ran else "unsupported", not wrong)
        if any(case.status == "failed" for case in cases):
            outcome = "failed"
        text = "; ".join(
            f"{'mask' if case.masked else 'no mask'}, dropout {case.dropout:g}: {case.kernels[0]}"
            for case in ran
            if case.kernels
        )
        reason = "; ".join([*wrong, *others]) or None
        yield line(f"attention {backend}", expected.format(backend), outcome, text, reason, file)


def trained(name: str, run: Repeat) -> Check:
    outcome, text = outcome_of(run.status), ""
    if run.validations:
        loss = run.validations[-1].loss  # null if it is not finite
        text = f"validation loss {'not finite' if loss is None else loss} after {run.steps} steps"
        outcome = outcome_of(run.status, loss is not None)
    expected = f"{name} trains to the end on CUDA."
    if run.topology is not None and run.topology.device != "cuda":
        outcome = "not_held"
        text += f", on {run.topology.device}"
    file = f"runs/{name}/repeat-1/metrics.json"
    return line(f"training {name}", expected, outcome, text, run.reason, file)


def windows(pairs: dict[str, PairedRun]) -> Check:
    found = [
        (window.steps, window.seconds)
        for run in pairs.values()
        for session in run.sessions
        for window in session.windows(REFERENCE)
    ]
    expected = (
        f"Comparison windows have at least {LEAST_STEPS} steps and last at least about a second."
    )
    if not found:
        reasons = sorted({run.reason for run in pairs.values() if run.reason})
        statuses: set[Status] = {run.status for run in pairs.values()}
        outcome = outcome_of("unsupported" if statuses == {"unsupported"} else "failed")
        return line("windows", expected, outcome, "", "; ".join(reasons) or None, "turns")
    steps, seconds = (min(values) for values in zip(*found, strict=True))
    outcome = outcome_of("ok", steps >= LEAST_STEPS and seconds >= LEAST_SECONDS)
    text = f"the shortest of {len(found)}: {steps} steps, {seconds:.2f} s"
    return line("windows", expected, outcome, text, None, "turns")


Expected = Callable[[float], bool]
COMPARISONS: tuple[tuple[str, str, str, Expected], ...] = (
    ("amp_bf16", REFERENCE, "bfloat16 is faster than 32 bits.", lambda r: r > 1),
    ("amp_fp16", REFERENCE, "float16 is faster than 32 bits.", lambda r: r > 1),
    ("tf32", REFERENCE, "TensorFloat-32 is faster than 32 bits.", lambda r: r > 1),
    (
        "log_every_1",
        "log_every_100",
        "Reading the loss at every step is not faster than at every hundredth.",
        lambda r: r <= 1 + SLACK,
    ),
    (
        "qkv_streams_as_published",
        "qkv_streams",
        "Recreated streams that wait for the device are slower than streams with events.",
        lambda r: r < 1,
    ),
    (
        "attention_flash",
        "attention_math",
        "FlashAttention without padding is faster than attention step by step.",
        lambda r: r > 1,
    ),
)
"""Variant, its reference, the expectation, and a predicate on the throughput ratio."""


def comparison(
    pairs: dict[str, PairedRun], variant: str, other: str, expected: str, holds: Expected
) -> Check:
    """A variant against another, both through their ratios to the reference."""
    name, file = f"{variant} against {other}", "comparisons.json"
    ratios = []
    for side in (variant, other):
        run = pairs.get(side)
        if side == REFERENCE:
            ratios.append(0.0)
        elif run is None or run.status != "ok":
            status: Status = "failed" if run is None else run.status
            reason = f"{side} was not timed" if run is None else run.reason
            return line(name, expected, outcome_of(status), "", reason, file)
        else:
            found = [session.ratio(Pair(side, REFERENCE)) for session in run.sessions]
            ratios.append(sum(one.estimate for one in found) / len(found))
    ratio = math.exp(ratios[0] - ratios[1])
    outcome = outcome_of("ok", holds(ratio))
    return line(name, expected, outcome, f"{ratio:.3f} times as fast", None, file)


def profile(found: Capture) -> Check:
    expected = f"The profile of {found.variant} has CUDA kernels."
    text = f"{found.profiler}: {found.profiler_reason}" if found.profiler else ""
    name, file = f"profile {found.variant}", f"profiles/{found.variant}/capture.json"
    return line(name, expected, outcome_of(found.status), text, found.reason, file)


def check(results: Path) -> GpuCheck:
    return GpuCheck(
        checks=list(lines(results)),
        hardware=read_hardware(),
        packages=package_versions() | {"python": platform.python_version()},
        commit=git_commit(Path(__file__)),
        logs=list(ends_of_logs(results)),
    )


TOLERANCE = 0.15
"""Allowed relative difference between a prediction and the memory that torch's allocator
allocated."""
GIB = 2**30


def against_nvml(name: str, predicted: Prediction, run: Repeat) -> Check:
    """Tensor memory matches the prediction, and NVML's number once the context is included."""
    files = ["memory/predicted.json", f"runs/{name}/repeat-1/metrics.json"]
    expected = (
        f"The predicted memory of {name} is within {percent(TOLERANCE, 0)} of what torch allocates, and "
        "NVML also counts cached memory and the context of the process."
    )
    memory = run.memory[0] if run.memory else None
    outcome = outcome_of("unsupported" if run.status == "unsupported" else "failed")
    found, reason = "nothing predicted", run.reason or predicted.reason
    if predicted.peak_bytes is not None:
        found = f"{predicted.peak_bytes / GIB:.2f} GiB predicted"
        if predicted.context_bytes is not None:
            found += f" plus a context of {predicted.context_bytes / GIB:.2f} GiB"
    if memory is not None and memory.allocated_bytes is None:
        reason = f"{name} ran on {memory.device}"
        outcome = "unsupported"
    elif memory is not None and memory.allocated_bytes and predicted.peak_bytes:
        ratio = predicted.peak_bytes / memory.allocated_bytes
        found += f", {memory.allocated_bytes / GIB:.2f} GiB allocated ({ratio:.2f} times)"
        found += f", {(memory.reserved_bytes or 0) / GIB:.2f} GiB reserved"
        outcome = outcome_of("ok", abs(ratio - 1) <= TOLERANCE)
        if memory.nvml_bytes is not None:
            found += f", {memory.nvml_bytes / GIB:.2f} GiB by NVML"
            if memory.nvml_bytes < (memory.reserved_bytes or 0):
                outcome, reason = "not_held", "NVML counts less than torch has reserved"
    return line(f"memory {name}", expected, outcome, found, reason, *files)


def largest_batch(found: LargestBatchResult) -> Check:
    outcome = "not_held" if found.status == "oom" else outcome_of(found.status, found.confirmed)
    text = f"{len(found.trials)} trials"
    if found.status == "ok":
        text = f"{found.largest_pairs} pairs fit, {found.step_pairs} more do not; {text}"
    expected = "The largest batch that fits is found, runs again, and a larger one fails again."
    file = f"memory/largest_batch/{found.variant}.json"
    return line(f"largest batch {found.variant}", expected, outcome, text, found.reason, file)


def outcome_of(status: Status, holds: bool = True) -> Outcome:
    """The outcome if jobs ended with this status, and if so whether the expectation ``holds``."""
    if status == "ok":
        return "held" if holds else "not_held"
    return "unsupported" if status == "unsupported" else "failed"


def line(
    name: str, expected: str, outcome: Outcome, found: str, reason: str | None, *files: str
) -> Check:
    """A line based on files, named relative to the results folder."""
    return Check(
        name=name,
        expected=expected,
        outcome=outcome,
        found=found,
        reason=reason,
        files=[f"results/{file}" for file in files],
    )


LOG_CHARACTERS = 2000  # characters of a log shown in the report: its end, where the error is


def device(found: DeviceFacts) -> Iterator[Check]:
    """Checks that the environment around the device works."""
    for one in found.facts:
        outcome, file = outcome_of(one.status, bool(one.holds)), "gpu_check/device.json"
        yield line(one.name, one.expected, outcome, one.found, one.reason, file)


def ends_of_logs(results: Path) -> Iterator[LogEnd]:
    for path in sorted((results / "logs").rglob("*.log")):
        text = path.read_text(errors="replace").strip()
        if text:
            yield LogEnd(file=f"results/{path.relative_to(results)}", text=text[-LOG_CHARACTERS:])


class GpuChecksJob(Job):
    """Compares the results of a GPU check with what is expected."""

    kind = "gpu_checks"

    results: Path = Path("results")
    output: Path  # checks.json

    def run(self, log_file: Path | None) -> None:
        found = check(self.results)
        write_text(self.output, found.model_dump_json(indent=1) + "\n")
        for one in found.checks:
            log.info("%-12s %s: %s", one.outcome, one.name, one.found or one.reason or "")
