import json
from pathlib import Path
from typing import Any

import pytest
from analysis_builders import certificate, result, topology, window

from schemas.results import Comparison, VariantResult
from transformer_core.analysis import compare as module
from transformer_core.analysis.compare import differs, main


def compare(baseline: VariantResult, variant: VariantResult, **statuses: Any) -> Comparison:
    """The comparison of two variants that are equivalent, but for ``statuses``."""
    names = (baseline.variant, variant.variant)
    return module.compare(baseline, variant, dict.fromkeys(names, "equivalent") | statuses)


BASE = [100.0, 101.0, 102.0, 103.0]
TWICE = [200.0, 202.0, 204.0, 206.0]


def test_ratio_is_variant_over_baseline() -> None:
    comparison = compare(result("single", BASE, BASE), result("fast", TWICE, TWICE))
    assert comparison.variant == "fast"
    assert comparison.reference == "single"
    assert comparison.speedup is not None
    assert comparison.speedup.median == 2.0
    assert comparison.speedup.low > 1
    assert comparison.note == ""
    assert differs(comparison)


def test_equal_throughput_is_no_difference() -> None:
    comparison = compare(result("single", BASE, BASE), result("same", BASE, BASE))
    assert not differs(comparison)
    assert "the interval holds 1" in comparison.note


def test_status_that_is_not_ok_has_no_ratio() -> None:
    bad = result("bad", [], status="oom", reason="too large")
    for pair in ((result("single", BASE), bad), (bad, result("single", BASE))):
        comparison = compare(*pair)
        assert comparison.speedup is None
        assert comparison.note == "bad ended oom"
        assert not differs(comparison)


def test_ok_without_a_window_has_no_ratio() -> None:
    comparison = compare(result("single", BASE), result("short", []))
    assert comparison.speedup is None
    assert comparison.note == "short has no timed window"


def test_few_windows_are_never_a_difference() -> None:
    comparison = compare(result("single", BASE, BASE), result("fast", [500.0], [510.0]))
    assert comparison.speedup is not None
    assert comparison.speedup.low > 1
    assert not differs(comparison)
    assert "fast has fewer than 3 timed windows" in comparison.note


def test_one_repeat_is_noted() -> None:
    comparison = compare(result("single", BASE), result("fast", TWICE, TWICE))
    assert "single has one timed repeat" in comparison.note
    assert "fast has one" not in comparison.note


def test_repeats_that_differ_more_than_the_variants_are_no_difference() -> None:
    drifting = result("drifting", [90.0] * 6, [120.0] * 6)
    comparison = compare(result("single", BASE, BASE), drifting)
    assert not differs(comparison)
    assert "holds 1" in comparison.note


def test_spread_above_the_effect_is_noted_where_the_interval_leaves_out_one() -> None:
    spread = result("spread", [110.0] * 6, [140.0] * 6)
    comparison = compare(result("single", [100.0] * 6, [100.0] * 6), spread)
    assert differs(comparison)
    assert "differ by a factor of 1.273" in comparison.note


def test_waiting_for_input_is_noted_above_five_percent() -> None:
    def waiting(name: str, wait: float) -> VariantResult:
        return result(name, [], [], windows=[window(100.0 + i, i, wait) for i in range(4)])

    base = result("single", BASE, BASE)
    assert "slow waited for input 6%" in compare(base, waiting("slow", 0.12)).note
    assert "waited" not in compare(base, waiting("busy", 0.1)).note


def test_other_devices_and_resumption_are_noted() -> None:
    other = result(
        "ddp",
        TWICE,
        TWICE,
        topology=topology(2, threads_per_rank=1, device="cuda"),
        resumed_at=[60],
    )
    note = compare(result("single", BASE, BASE), other).note
    assert "cuda against cpu" in note
    assert "2 against 1 ranks" in note
    assert "1 against 2 threads per rank" in note
    assert "ddp was resumed in repeat 1, 2" in note


def test_every_other_variant_in_order() -> None:
    results = [result("b", BASE), result("single", BASE), result("a", TWICE)]
    statuses = dict.fromkeys(["single", "a", "b"], "equivalent")
    found = module.compare_all("single", results, statuses)
    assert [item.variant for item in found] == ["b", "a"]


def test_a_ratio_counts_only_with_certificates_on_both_sides() -> None:
    base, fast = result("single", BASE, BASE), result("fast", TWICE, TWICE)
    good = compare(base, fast)
    assert (good.counts, good.certificate, good.note) == (True, "equivalent", "")
    for status, words in (
        ("not_equivalent", "fast does not train the same model: no speed-up"),
        ("different", "fast trains a different model by design"),
        ("failed", "fast has no certificate (failed): no speed-up"),
    ):
        item = compare(base, fast, fast=status)
        assert item.speedup == good.speedup, "the timing stays"
        assert (item.counts, item.certificate) == (False, status)
        assert words in item.note
    against = compare(base, fast, single="not_equivalent")
    assert (against.counts, against.certificate) == (False, "equivalent")
    assert "single does not train the same model" in against.note


def test_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for item in (result("single", BASE, BASE), result("fast", TWICE, TWICE)):
        files.append(str(tmp_path / f"{item.variant}.json"))
        Path(files[-1]).write_text(item.model_dump_json())
    certificates = []
    for name in ("single", "fast"):
        certificates.append(str(tmp_path / f"certificate-{name}.json"))
        Path(certificates[-1]).write_text(certificate(name).model_dump_json())
    output = tmp_path / "comparisons.json"
    command = ["--results", *files, "--output", str(output), "--certificates", *certificates]
    assert main(["--baseline", "single", *command]) == 0
    (comparison,) = json.loads(output.read_text())
    assert Comparison.model_validate(comparison).variant == "fast"

    output.unlink()
    assert main(["--baseline", "single", *command[:-1]]) == 1
    assert "has no certificate of fast" in capsys.readouterr().err
    assert main(["--baseline", "singel", *command]) == 1
    assert "did you mean single?" in capsys.readouterr().err
    assert not output.exists()


def test_repeat_without_windows_does_not_hide_the_others() -> None:
    mixed = result("mixed", TWICE, [])
    assert compare(result("single", BASE, BASE), mixed).speedup is not None
