import json
from typing import Any

import pytest
from analysis_builders import certificate, memory, result
from kernels_seen import KERNELS
from pair_builders import ended, paired, session, side, state, window

from schemas.results import Comparison, GpuState, PairedRun, Round, Session, VariantResult
from schemas.results.comparisons import GpuWork
from tests.orders import run_job
from tests.records import record
from transformer_core.decide import compare as module


def compare(*runs: PairedRun, results: list[VariantResult] | None = None, **statuses: Any) -> Any:
    """The comparisons of paired runs whose variants are equivalent, but for ``statuses``."""
    names = {name for run in runs for name in (run.reference, run.variant)}
    known = {name: result(name, [100.0]) for name in names}
    known |= {item.variant: item for item in results or []}
    certificates = {
        name: certificate(name, status=status)
        for name, status in (dict.fromkeys(names, "equivalent") | statuses).items()
    }
    return module.compare(runs, known, certificates, margin=0.02)


def test_two_sessions_that_agree_are_a_verdict():
    fast, slow, same = compare(
        paired(1.499, 1.501, variant="fast"),
        paired(0.799, 0.801, variant="slow"),
        paired(1.0, 1.001, variant="same"),
    )
    assert [fast.verdict, slow.verdict, same.verdict] == ["FASTER", "SLOWER", "SAME"]
    assert fast.speedup.median == pytest.approx(1.5, rel=1e-3)
    assert fast.speedup.low > 1.4
    assert (fast.variant, fast.reference, fast.counts, fast.note) == ("fast", "single", True, "")


def test_turns_of_other_kernels_than_the_certified_ones_are_no_speed_up():
    def sides(threads: int) -> dict[str, Any]:
        kernels = KERNELS.model_copy(update={"threads": threads})
        fast = side("fast").model_copy(update={"kernels": kernels})
        return {"sides": [side("single"), fast]}

    def comparison(threads: int) -> Comparison:
        run = paired(1.5, 1.5)
        second = run.sessions[1].model_copy(update=sides(threads))
        run = run.model_copy(update={"sessions": [run.sessions[0], second]})
        known = {name: result(name, [100.0]) for name in ("single", "fast")}
        certified = {name: certificate(name) for name in known}
        certified["fast"] = certified["fast"].model_copy(
            update={"kernels": KERNELS, "provenance": run.provenance["fast"]}
        )
        (found,) = module.compare([run], known, certified, margin=0.02)
        return found

    assert comparison(threads=2).counts
    other = comparison(threads=1)
    assert not other.counts
    assert other.certificate == "inconclusive"
    assert "fast was timed differently than certified (threads: 1 where" in other.note


def test_one_session_is_never_a_verdict():
    (only,) = compare(paired(2.0))
    assert only.verdict == "UNDECIDED"
    assert only.speedup.median == pytest.approx(2.0, rel=1e-3)
    assert "one session" in only.effect("throughput").reason
    assert only.effect("peak_memory").verdict == "UNDECIDED"


def test_sessions_that_disagree_are_undecided():
    (comparison,) = compare(paired(1.0, 1.3))
    assert comparison.verdict == "UNDECIDED"
    assert "holds 1" in comparison.effect("throughput").reason


def test_a_side_that_ended_has_a_reason_and_no_number():
    for status in ("unsupported", "oom", "diverged", "failed"):
        (comparison,) = compare(ended(status, "why", "bad"))
        effect = comparison.effect("throughput")
        assert (effect.ratio, effect.verdict) == (None, None)
        assert effect.reason == comparison.note == f"bad ended {status}"
        assert not comparison.counts
        assert comparison.effect("peak_memory").ratio is None


def test_memory_is_that_of_the_sessions():
    less = {"sides": [side("single", 1000), side("lean", 600)]}
    (lean,) = compare(paired(1.0, 1.0, variant="lean", **less))
    effect = lean.effect("peak_memory")
    assert (effect.verdict, effect.ratio.median) == ("LESS", pytest.approx(0.6))
    assert (effect.ratio.low, effect.ratio.high) == (pytest.approx(0.6), pytest.approx(0.6))
    unknown = {"sides": [side("single", 1000), side("lean", None)]}
    (lean,) = compare(paired(1.0, 1.0, variant="lean", **unknown))
    assert "is not known" in lean.effect("peak_memory").reason


def trained(variant: str, sent: int | None, steps: int = 100, **changes: Any) -> VariantResult:
    """A variant whose two ranks sent so many bytes each; None for one that counts none."""
    traffic = None
    if sent is not None:
        operation = {"calls": 1, "sent_bytes": [sent, sent], "received_bytes": [sent, sent]}
        traffic = {"traffic": {"all_reduce": operation}}
    return result(variant, [100.0], communication=traffic, steps=steps, **changes)


def test_traffic_is_counted_by_step():
    run = paired(1.0, 1.0, variant="sharded", reference="ddp")
    known = [trained("ddp", 1000, 100), trained("sharded", 3000, 200)]
    effect = compare(run, results=known)[0].effect("traffic")
    assert (effect.verdict, effect.ratio.median) == ("MORE", 1.5)
    assert effect.ratio.low == effect.ratio.high == 1.5
    equal = [trained("ddp", 7, 3), trained("sharded", 7, 3)]
    assert compare(run, results=equal)[0].effect("traffic").verdict == "SAME"


def test_traffic_of_one_process_is_none_at_all():
    run = paired(1.0, 1.0, variant="ddp")
    effect = compare(run, results=[trained("single", None), trained("ddp", 5)])[0].effect("traffic")
    assert (effect.ratio, effect.verdict) == (None, "MORE")
    assert "the reference has no traffic" in effect.reason
    several = [memory(0, "cuda:0"), memory(0, "cuda:1")]
    known = [trained("single", None), trained("ddp", None, memory=several)]
    effect = compare(run, results=known)[0].effect("traffic")
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
        (item,) = compare(run, fast=status)
        assert item.speedup == good.speedup, "the timing stays"
        assert (item.counts, item.certificate) == (False, status)
        assert words in item.note
    (against,) = compare(run, single="not_equivalent")
    assert (against.counts, against.certificate) == (False, "equivalent")
    assert "single does not train the same model" in against.note


def test_what_disturbed_the_sessions_is_noted():
    throttled = ["power cap"]
    hot = record(
        GpuState, index=0, clock_megahertz=900.0, celsius=90.0, watts=700.0, throttled=throttled
    )
    changes = {"after": state(0.5, gpus=[hot]), "foreign_cpu_seconds": 0.6}
    run = paired(1.0, 1.0, **changes)
    total = sum(session.rounds_seconds for session in run.sessions)
    for rnd in run.sessions[0].rounds[:2]:
        held = {"power_held_seconds": 0.1 * total, "heat_held_seconds": 0.01 * total}
        rnd.gpus.append(GpuWork(index=0, joules=1.0, **held))
    (comparison,) = compare(run)
    assert "power held the clock of GPU 0 down for 20% of the rounds" in comparison.note
    assert "heat held" not in comparison.note
    assert "other processes took up to 20% of the CPUs" in comparison.note
    assert "changed by a factor of 0.50 within a session" in comparison.note
    assert "the GPU's clock was held down: power cap" in comparison.note


def test_waiting_and_other_devices_are_noted():
    def waiting(number: int) -> Session:
        rounds = [
            Round(windows=[window("single", 100.0), window("ddp", 100.0, wait=2.0)])
            for _ in range(6)
        ]
        return session(1.0, number, variant="ddp", rounds=rounds)

    sides = [side("single"), side("ddp", world_size=2)]
    (comparison,) = compare(paired(1.0, 1.0, variant="ddp", sides=sides))
    assert "2 against 1 ranks" in comparison.note
    run = paired(1.0, 1.0, variant="ddp").model_copy(update={"sessions": [waiting(1), waiting(2)]})
    assert "ddp waited for input 20% of the time" in compare(run)[0].note


def test_job(tmp_path, capsys):
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

    output.unlink()
    assert run_job("compare", **asked, results=results, certificates=certified[:1]) == 1
    assert "results/equivalence/fast.json" in capsys.readouterr().err
    assert run_job("compare", **asked, results=results[1:], certificates=certified) == 1
    assert "results/runs/single/metrics.json" in capsys.readouterr().err
    assert not output.exists()


def test_a_study_of_one_variant_has_no_comparison():
    assert compare() == []
