"""Comparisons of paired runs: verdicts, when they do not count, and notes on them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from analysis_builders import certificate, memory, result
from kernels_seen import KERNELS
from pair_builders import ended, paired, side, state, window

from schemas.results import (
    Certificate,
    Comparison,
    Effect,
    GpuState,
    PairedRun,
    Round,
    VariantResult,
)
from schemas.results.comparisons import GpuWork
from tests.orders import run_job
from tests.records import record, topology
from transformer_core.decide import compare as module
from transformer_core.measure.comparison import of_two


def compare(
    *runs: PairedRun,
    results: Sequence[VariantResult] = (),
    certificates: Sequence[Certificate] = (),
) -> list[Comparison]:
    """The comparisons of paired runs whose variants are equivalent, unless given."""
    names = {name for run in runs for name in (run.reference, run.variant)}
    known = {name: result(name, [100.0]) for name in names}
    known |= {item.variant: item for item in results}
    certified = {name: certificate(name) for name in names}
    certified |= {item.variant: item for item in certificates}
    return module.compare(runs, known, certified, margin=0.02)


def traffic(*trainings: VariantResult) -> Effect:
    """The effect on traffic of a variant against a reference, after these trainings of both."""
    reference, variant = (training.variant for training in trainings)
    run = paired(1.0, 1.0, reference=reference, variant=variant)
    (found,) = compare(run, results=trainings)
    return found.effect("traffic")


def test_two_sessions_that_agree_give_a_verdict():
    fast, slow, same = compare(
        paired(1.499, 1.501, variant="fast"),
        paired(0.799, 0.801, variant="slow"),
        paired(1.0, 1.001, variant="same"),
    )
    assert [fast.verdict, slow.verdict, same.verdict] == ["FASTER", "SLOWER", "SAME"]
    assert fast.speedup.median == pytest.approx(1.5, rel=1e-3)
    assert fast.speedup.low > 1.4
    assert (fast.variant, fast.reference, fast.counts, fast.note) == ("fast", "single", True, "")
    assert compare() == [], "a study of one variant"


@pytest.mark.parametrize(
    ("status", "threads"), [("equivalent", 2), ("equivalent", 1), ("different", 1)]
)
def test_turns_with_uncertified_kernels_are_no_speed_up(status, threads):
    run = paired(1.5, 1.5)
    timed = side("fast").model_copy(
        update={"kernels": KERNELS.model_copy(update={"threads": threads})}
    )
    second = run.sessions[1].model_copy(update={"sides": [side("single"), timed]})
    run = run.model_copy(update={"sessions": [run.sessions[0], second]})
    of_fast = {"kernels": KERNELS, "provenance": run.provenance["fast"]}
    (found,) = compare(run, certificates=[certificate("fast", status).model_copy(update=of_fast)])
    assert found.counts == (threads == KERNELS.threads)
    if not found.counts:
        assert found.certificate == "inconclusive"
        assert "fast was timed differently than certified (threads: 1 where" in found.note
    unknown = certificate("fast").model_copy(update=of_fast | {"kernels": None})
    (found,) = compare(run, certificates=[unknown])
    assert found.counts


def test_one_session_and_sessions_that_disagree_are_undecided():
    (only,) = compare(paired(2.0))
    assert only.verdict == only.effect("peak_memory").verdict == "UNDECIDED"
    assert only.speedup.median == pytest.approx(2.0, rel=1e-3)
    assert "one session" in only.effect("throughput").reason
    (apart,) = compare(paired(1.0, 1.3))
    assert apart.verdict == "UNDECIDED"
    assert "contains 1" in apart.effect("throughput").reason


def test_a_side_that_ended_has_a_reason_and_no_number():
    (comparison,) = compare(ended("oom", "why", "bad"))
    effect = comparison.effect("throughput")
    assert (effect.ratio, effect.verdict) == (None, None)
    assert effect.reason == comparison.note == "bad ended oom: why"
    assert not comparison.counts
    assert comparison.effect("peak_memory").ratio is None


def test_memory_comes_from_the_sessions():
    less = {"sides": [side("single", 1000), side("lean", 600)]}
    (lean,) = compare(paired(1.0, 1.0, variant="lean", **less))
    effect = lean.effect("peak_memory")
    assert effect.verdict == "LESS"
    ratio = effect.ratio
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.6, 0.6, 0.6))
    unknown = {"sides": [side("single", 1000), side("lean", None)]}
    (lean,) = compare(paired(1.0, 1.0, variant="lean", **unknown))
    assert "is unknown" in lean.effect("peak_memory").reason


def trained(variant: str, sent: int | None, steps: int = 100, **changes: Any) -> VariantResult:
    """A variant whose two ranks sent ``sent`` bytes each; None if it does not count them."""
    counted = None
    if sent is not None:
        operation = {"calls": 1, "sent_bytes": [sent, sent], "received_bytes": [sent, sent]}
        counted = {"traffic": {"all_reduce": operation}}
    return result(variant, [100.0], communication=counted, steps=steps, **changes)


def test_traffic_is_counted_by_step():
    effect = traffic(trained("ddp", 1000, 100), trained("sharded", 3000, 200))
    assert (effect.verdict, effect.ratio.median) == ("MORE", 1.5)
    assert traffic(trained("ddp", 7, 3), trained("sharded", 7, 3)).verdict == "SAME"
    # A run that resumed has counted the traffic since then.
    resumed = trained("resumed", 500, 100, resumed_at=[20, 50])
    assert traffic(trained("ddp", 1000, 100), resumed).verdict == "SAME"
    effect = traffic(trained("ddp", 1000, 100), trained("resumed", 0, 100, resumed_at=[100]))
    assert (effect.verdict, effect.reason) == (None, "the traffic of resumed is not counted")


def test_a_single_process_has_no_traffic():
    effect = traffic(trained("single", None), trained("ddp", 5))
    assert (effect.ratio, effect.verdict) == (None, "MORE")
    # Also if it was killed after its last checkpoint.
    resumed = trained("single", None, 100, resumed_at=[100])
    assert traffic(resumed, trained("ddp", 5)).verdict == "MORE"
    assert traffic(trained("ddp", 5), resumed).verdict == "LESS"
    several = [memory(0, "cuda:0"), memory(0, "cuda:1")]
    effect = traffic(trained("single", None), trained("ddp", None, memory=several))
    assert (effect.verdict, effect.reason) == (None, "the traffic of ddp is not counted")


def test_a_ratio_counts_only_with_certificates_on_both_sides():
    run = paired(1.5, 1.5)
    (good,) = compare(run)
    assert (good.counts, good.certificate, good.note) == (True, "equivalent", "")
    for status, words in (
        ("not_equivalent", "fast does not train the same model: no speed-up"),
        ("different", "fast trains a different model by design"),
        ("failed", "fast has no certificate (failed): no speed-up"),
    ):
        (item,) = compare(run, certificates=[certificate("fast", status)])
        assert item.speedup == good.speedup, "the timing stays"
        assert (item.counts, item.certificate) == (False, status)
        assert words in item.note
    (against,) = compare(run, certificates=[certificate("single", "not_equivalent")])
    assert (against.counts, against.certificate) == (False, "equivalent")
    assert "single does not train the same model" in against.note


def test_disturbances_of_the_sessions_are_noted():
    hot = record(GpuState, index=0, clock_megahertz=900.0, throttled=["power cap"])
    windows = [window("single", 100.0), window("fast", 100.0, wait=2.0)]
    # The rounds of a session take 3 s.
    held = GpuWork(index=0, power_held_seconds=0.6, heat_held_seconds=0.06)
    run = paired(
        1.0,
        1.0,
        sides=[side("single"), side("fast", world_size=2)],
        rounds=[Round(windows=windows, gpus=[held]), *[Round(windows=windows)] * 5],
        after=state(0.5, gpus=[hot]),
        foreign_cpu_seconds=0.6,
    )
    (comparison,) = compare(
        run.model_copy(update={"sessions": [of_two(one, run.pair) for one in run.sessions]})
    )
    for words in (
        "power held the clock of GPU 0 down for 20 % of the rounds",
        "other processes took up to 20 % of the CPUs",
        "changed by a factor of 0.50 within a session",
        "the GPU's clock was held down: power cap",
        "fast waited for input 20 % of the time",
        "2 against 1 ranks",
        "fast had 2 threads for 1 core",
    ):
        assert words in comparison.note
    assert "heat held" not in comparison.note


def test_sides_on_unlike_devices_are_noted():
    gpu = topology(1, device="cuda", threads_per_rank=4)
    sides = [side("single"), side("fast").model_copy(update={"topology": gpu})]
    (comparison,) = compare(paired(1.0, 1.0, sides=sides))
    assert "cuda against cpu" in comparison.note
    assert "4 against 1 threads per rank" in comparison.note
    assert "4 threads for" not in comparison.note, "the threads of a GPU's process do not matter"


def test_job(tmp_path):
    def write(name: str, record: Any) -> str:
        (tmp_path / name).write_text(record.model_dump_json())
        return str(tmp_path / name)

    results = [write(f"{name}.json", result(name, [100.0])) for name in ("single", "fast")]
    certified = [write(f"c-{name}.json", certificate(name)) for name in ("single", "fast")]
    pairs = [write("pair.json", paired(1.5, 1.5))]
    output = tmp_path / "comparisons.json"
    asked = {"margin": 0.02, "pairs": pairs, "output": output}
    assert run_job("compare", **asked, results=results, certificates=certified) == 0
    (comparison,) = json.loads(output.read_text())
    assert Comparison.model_validate(comparison).verdict == "FASTER"
