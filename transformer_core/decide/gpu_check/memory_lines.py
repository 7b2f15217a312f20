"""The lines on memory: what was predicted against what NVML and torch's allocator found."""

from schemas.results import LargestBatchResult, Prediction, Repeat
from schemas.results.gpu_check import Check, Outcome

TOLERANCE = 0.15
"""By so much a prediction may differ from what torch's allocator handed out."""
GIB = 2**30


def against_nvml(name: str, predicted: Prediction, run: Repeat) -> Check:
    """The tensors are as many bytes as predicted, and with the context as NVML says."""
    files = ["results/memory/predicted.json", f"results/runs/{name}/repeat-1/metrics.json"]
    expected = (
        f"The memory of {name} is predicted to {TOLERANCE:.0%} of what torch hands out, and NVML "
        "counts that, what is cached and the context of the process."
    )
    memory = run.memory[0] if run.memory else None
    outcome: Outcome = "unsupported" if run.status == "unsupported" else "failed"
    found, reason = _predicted(predicted), run.reason or predicted.reason
    if memory is not None and memory.allocated_bytes is None:
        reason = f"{name} ran on {memory.device}"
        outcome = "unsupported"
    elif memory is not None and memory.allocated_bytes and predicted.peak_bytes:
        ratio = predicted.peak_bytes / memory.allocated_bytes
        found += f", {memory.allocated_bytes / GIB:.2f} GiB handed out ({ratio:.2f} times)"
        found += f", {(memory.reserved_bytes or 0) / GIB:.2f} GiB reserved"
        outcome = "held" if abs(ratio - 1) <= TOLERANCE else "not_held"
        if memory.nvml_bytes is not None:
            found += f", {memory.nvml_bytes / GIB:.2f} GiB by NVML"
            outside = memory.nvml_bytes - (memory.reserved_bytes or 0)
            if outside < 0:
                outcome, reason = "not_held", "NVML counts less than torch has reserved"
    return Check(
        name=f"memory {name}",
        expected=expected,
        outcome=outcome,
        found=found,
        reason=reason,
        files=files,
    )


def _predicted(prediction: Prediction) -> str:
    if prediction.peak_bytes is None:
        return "nothing predicted"
    context = prediction.context_bytes
    beside = "" if context is None else f" beside a context of {context / GIB:.2f} GiB"
    return f"{prediction.peak_bytes / GIB:.2f} GiB predicted{beside}"


def largest_batch(found: LargestBatchResult) -> Check:
    """The search ends with an answer that is confirmed."""
    outcome: Outcome = "unsupported" if found.status == "unsupported" else "failed"
    text = f"{len(found.trials)} trials"
    if found.status == "ok":
        outcome = "held" if found.confirmed else "not_held"
        text = f"{found.largest_pairs} pairs fit, {found.step_pairs} more do not; {text}"
    elif found.status == "oom":
        outcome = "not_held"
    return Check(
        name=f"largest batch {found.variant}",
        expected="The largest batch that fits is found, runs again, and a larger one fails again.",
        outcome=outcome,
        found=text,
        reason=found.reason,
        files=[f"results/memory/largest_batch/{found.variant}.json"],
    )
