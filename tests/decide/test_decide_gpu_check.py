"""Lines of the GPU check: held, not held, unsupported or failed, each with its reason."""

from typing import Any

import pytest
from analysis_builders import memory, repeat
from pair_builders import paired, session, window

from schemas.results import LargestBatchResult, PairedRun, Round, Validation
from schemas.results.gpu_check import (
    AttentionTruth,
    AttentionTruths,
    DeviceFact,
    DeviceFacts,
    GpuTest,
    GpuTests,
)
from tests.orders import run_job
from tests.records import prediction, provenance, record, topology
from transformer_core.common.digests import write_result
from transformer_core.common.files import write_text
from transformer_core.decide import gpu_check as lines
from transformer_core.decide.gpu_check import against_nvml, largest_batch

GIB = 2**30


LARGEST = record(
    LargestBatchResult, variant="amp_bf16", status="ok", limit_kind="torch_allocator",
    limit_bytes=1, margin=0.05, source_tokens=1, target_tokens=1, largest_pairs=100,
    step_pairs=5, confirmed=True, provenance=provenance(),
)  # fmt: skip


def gpu_tests(passed: int, *failed: GpuTest, status: Any = "ok") -> GpuTests:
    return GpuTests(
        status=status,
        reason=None if status == "ok" else "no device",
        passed=passed,
        failed=list(failed),
        skipped=[],
        seconds=1.0,
    )


def test_tests():
    assert lines.tests(gpu_tests(0)).outcome == "not_held", "none that ran proves nothing"
    failed = lines.tests(gpu_tests(3, GpuTest(name="a.b", text="x\nassert 1 == 2")))
    assert (failed.outcome, failed.reason) == ("not_held", "a.b: assert 1 == 2")
    killed = lines.tests(gpu_tests(3, GpuTest(name="a.b", text="")))
    assert (killed.outcome, killed.reason) == ("not_held", "a.b: no output")


@pytest.mark.parametrize(
    ("changes", "outcome", "loss"),
    [
        ({}, "held", "3.0"),
        ({"status": "failed", "reason": "killed"}, "failed", "3.0"),
        ({"topology": topology()}, "not_held", "3.0"),
        ({"validations": [Validation(step=9, loss=None)]}, "not_held", "not finite"),
    ],
)
def test_trainings(changes, outcome, loss):
    on_gpu = {"topology": topology(device="cuda"), "validations": [Validation(step=9, loss=3.0)]}
    line = lines.trained("single", repeat(1, [1.0], **on_gpu | changes))
    assert (line.outcome, line.reason) == (outcome, changes.get("reason"))
    assert line.found.startswith(f"validation loss {loss} after 100 steps")


def truth(**changes: Any) -> AttentionTruth:
    given = {"backend": "flash", "masked": False, "dropout": 0.1, "dropped": 0.1, "finite": True}
    ran = {"status": "ok", "kernels": ["flash_fwd_kernel"], "seconds": 1e-4}
    return record(AttentionTruth, **given | ran | changes)


def attention(*cases: AttentionTruth, **changes: Any) -> Any:
    given = {"status": "ok", "reason": None, "dtype": "bfloat16", "shape": [1], "cases": cases}
    (line,) = lines.attention(AttentionTruths.model_validate(given | changes))
    return line


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({}, "held", None),
        ({"dropped": 0.125}, "not_held", "dropped 0.1250 of the weights instead of 0.1"),
        ({"error": 0.3, "dropout": 0.0, "dropped": None}, "not_held", "an error of 0.3"),
        ({"finite": False}, "not_held", "numbers that are not finite"),
    ],
)
def test_kernels_of_attention(changes, outcome, reason):
    line = attention(truth(**changes))
    assert (line.outcome, line.reason) == (outcome, reason)
    assert "flash_fwd_kernel" in line.found


def test_a_missing_kernel_is_unsupported_and_a_broken_one_has_failed():
    nothing = {"dropped": None, "finite": None, "seconds": None, "kernels": []}
    missing = truth(status="unsupported", reason="no kernel", **nothing)
    broken = truth(status="failed", reason="x", **nothing)
    assert attention(missing).outcome == "unsupported"
    assert attention(truth(), missing).outcome == "held"
    assert attention(truth(), broken).outcome == "failed"


def pair(variant: str, speed: float, steps: int = 20, seconds: float = 1.0) -> PairedRun:
    """``variant`` trains ``speed`` times as many tokens per second as the reference."""
    windows = [
        window(side, rate).model_copy(
            update={"steps": steps, "seconds": seconds, "tokens": round(rate * seconds)}
        )
        for side, rate in (("single", 1e6), (variant, speed * 1e6))
    ]
    made = session(1.0, variant=variant, rounds=[Round(windows=windows)] * 5)
    return paired(variant=variant, sessions=[made])


def line_of(pairs: dict[str, PairedRun], variant: str) -> Any:
    (asked,) = (asked for asked in lines.COMPARISONS if asked[0] == variant)
    return lines.comparison(pairs, *asked)


def test_comparisons_go_through_the_reference():
    pairs = {"log_every_1": pair("log_every_1", 0.5), "log_every_100": pair("log_every_100", 2)}
    line = line_of(pairs, "log_every_1")
    assert (line.outcome, line.found) == ("held", "0.250 times as fast")
    pairs["log_every_1"] = pair("log_every_1", 3)
    assert line_of(pairs, "log_every_1").outcome == "not_held"
    for speed, outcome in ((2, "held"), (0.9, "not_held")):
        assert line_of({"amp_bf16": pair("amp_bf16", speed)}, "amp_bf16").outcome == outcome


def test_a_side_that_was_not_timed_is_named():
    line = line_of({}, "amp_bf16")
    assert (line.outcome, line.reason) == ("failed", "amp_bf16 was not timed")
    assert lines.windows({}).outcome == "failed"


def test_without_a_device_every_line_is_unsupported_and_says_why():
    without = {"status": "unsupported", "reason": "no device"}
    pairs = {"amp_bf16": pair("amp_bf16", 1).model_copy(update=without | {"sessions": []})}
    ended = repeat(1, [], memory=[], **without)
    for line in (
        lines.tests(gpu_tests(0, status="unsupported")),
        attention(**without),
        line_of(pairs, "amp_bf16"),
        lines.windows(pairs),
        against_nvml("single", prediction(10 * GIB, device="cuda"), ended),
        largest_batch(LARGEST.model_copy(update=without)),
    ):
        assert (line.outcome, line.reason) == ("unsupported", "no device")


@pytest.mark.parametrize(
    ("steps", "seconds", "outcome"),
    [(20, 1.0, "held"), (1, 1.0, "not_held"), (50, 0.02, "not_held")],
)
def test_short_windows_do_not_hold(steps, seconds, outcome):
    assert lines.windows({"a": pair("a", 1, steps, seconds)}).outcome == outcome


def memory_of(allocated: float, nvml: float) -> Any:
    """The line of a run for which 10 GiB were predicted."""
    found = prediction(10 * GIB, device="cuda", context_bytes=GIB // 2)
    counts = {
        "allocated_bytes": round(allocated * GIB),
        "reserved_bytes": round((allocated + 1) * GIB),
        "nvml_bytes": round(nvml * GIB),
    }
    run = repeat(1, [1.0], memory=[memory(device="cuda:0", **counts)])
    return against_nvml("single", found, run)


def test_predicted_memory_is_compared_with_allocated_memory():
    assert memory_of(10.5, 12.1).outcome == "held"
    assert memory_of(14, 16).outcome == "not_held"
    line = memory_of(10.5, 5)
    assert (line.outcome, line.reason) == ("not_held", "NVML counts less than torch has reserved")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({}, "held"), ({"confirmed": False}, "not_held"), ({"status": "failed"}, "failed")],
)
def test_the_largest_batch(changes, outcome):
    assert largest_batch(LARGEST.model_copy(update=changes)).outcome == outcome


@pytest.mark.parametrize(
    ("status", "holds", "outcome"),
    [
        ("ok", True, "held"),
        ("ok", False, "not_held"),
        ("unsupported", None, "unsupported"),
        ("oom", None, "failed"),
    ],
)
def test_the_environment_of_the_device(status, holds, outcome):
    fact = DeviceFact(
        name="NCCL, one rank", expected="It adds.", status=status, holds=holds, found="1",
        reason=None if status == "ok" else "because",
    )  # fmt: skip
    (line,) = lines.device(DeviceFacts(facts=[fact], versions={}))
    assert (line.outcome, line.reason) == (outcome, fact.reason)
    assert line.files == ["results/gpu_check/device.json"]


def test_the_ends_of_all_logs_are_kept(tmp_path):
    (tmp_path / "logs/run").mkdir(parents=True)
    (tmp_path / "logs/run/single.log").write_text("x" * 5000 + "RuntimeError: at the end\n")
    (tmp_path / "logs/empty.log").write_text("\n")
    (end,) = lines.ends_of_logs(tmp_path)
    assert end.file == "results/logs/run/single.log"
    assert end.text.endswith("RuntimeError: at the end")
    assert len(end.text) == lines.LOG_CHARACTERS


ADDS = DeviceFact(name="NCCL", expected="", status="ok", holds=True, found="adds", reason=None)


def test_the_page_shows_what_was_not_run_and_what_is_needed_to_fix_faults_remotely(tmp_path):
    output = tmp_path / "gpu_check/so_far.html"
    run_job("gpu_check_page", results=tmp_path, output=output)
    page = output.read_text()
    for name in ("environment", "attention", "roofline", "tests", "training tf32", "comparisons"):
        assert f'<th scope="row">{name}</th>' in page
    assert "not run yet" in page
    assert "There are no logs." in page
    assert "All packages" not in page

    truths = AttentionTruths(status="ok", reason=None, dtype="bfloat16", shape=[1], cases=[truth()])
    results = {
        "tests": gpu_tests(1, GpuTest(name="a.b", text="assert 1 == 2")),
        "attention": truths,
        "device": DeviceFacts(facts=[ADDS], versions={"package nvidia-cudnn": "9.1"}),
    }
    for name, found in results.items():
        write_text(tmp_path / f"gpu_check/{name}.json", found.model_dump_json())
    write_text(tmp_path / "logs/x.log", "<end>")
    # The study may lack one of the variants.
    write_text(tmp_path / "memory/predicted.json", '{"predictions": []}')
    write_result(tmp_path / "memory/largest_batch/amp_bf16.json", LARGEST.model_dump_json())
    check = lines.check(tmp_path)
    outcomes = {one.name: one.outcome for one in check.checks}
    assert (outcomes["NCCL"], outcomes["tests"]) == ("held", "not_held")
    assert (outcomes["largest batch amp_bf16"], ".digests" in outcomes) == ("held", False)
    assert outcomes["roofline"] == outcomes["comparisons"] == "not_run"
    run_job("gpu_check_page", results=tmp_path, output=output)
    page = output.read_text()
    parts = ["assert 1 == 2", "flash_fwd_kernel", "adds", "nvidia-cudnn", "9.1"]
    parts += ["1 passed, 1 failed, 0 skipped.", "All packages"]
    parts += ["results/logs/x.log", "&lt;end&gt;", check.packages["torch"], check.commit or ""]
    for words in parts:
        assert words in page, words
