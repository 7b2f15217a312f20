"""Comparing results with equal and with changed ones."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hostile import write
from report_builders import build, mixed

from schemas.errors import ConfigError
from transformer_core.common.digests import forget
from transformer_core.decide.against import AgainstJob, _change, against, read_side
from transformer_core.decide.intervals import exact
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.compare_page import render
from transformer_core.report.sections.answer import read_answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("against") / "results", mixed)
    write(folder / "summary.json", read_answer(StudyResults(folder)))
    return folder


@pytest.fixture
def other(folder, tmp_path):
    """A copy of the same results for the test to change."""
    return Path(shutil.copytree(folder, tmp_path / "results"))


def test_equal_results_show_no_change(folder):
    found = against(read_side(folder), read_side(folder))
    assert found.same_device
    assert found.changes
    assert {change.ratio.median for change in found.changes if change.ratio} == {1.0}
    assert not {change.verdict for change in found.changes} & {"FASTER", "SLOWER", "LESS", "MORE"}
    assert not [*found.statuses, *found.certificates, *found.other_specs]
    peaks = {change.reason for change in found.changes if change.quantity == "peak_memory"}
    assert any(reason.startswith("peaks of single runs") for reason in peaks)


def test_run_specs_of_earlier_days_are_those_of_today(folder, other):
    """They have the study's evaluation."""
    for file in other.glob("runs/*/spec.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"evaluation": {"beam_size": 4}}))
        forget(file)
    found = against(read_side(folder), read_side(other))
    assert {change.variant for change in found.changes} == {*read_side(folder).variants}
    assert not found.other_specs


def test_peaks_that_count_as_the_same_differ_by_less_than_the_margin_of_the_study(folder, other):
    study = json.loads((other / "study.json").read_text())
    study["comparison"]["margin"] = 0.1
    (other / "study.json").write_text(json.dumps(study))
    metrics = other / "runs/single/metrics.json"
    metrics.write_text(
        re.sub(r'("peak_memory_bytes": )(\d+)', more_by_8_percent, metrics.read_text())
    )
    forget(metrics)
    found = against(read_side(other), read_side(folder))
    (peak,) = [c for c in found.changes if (c.variant, c.quantity) == ("single", "peak_memory")]
    assert peak.ratio.median == pytest.approx(1.08, abs=1e-3)
    assert peak.verdict == "SAME"
    assert peak.reason.endswith("differences below 10 % count as the same")


def more_by_8_percent(found: re.Match[str]) -> str:
    return f"{found[1]}{round(1.08 * int(found[2]))}"


def test_a_number_that_one_side_lacks_has_no_ratio():
    for sides in ((None, exact(1.0)), (exact(1.0), None)):
        change = _change("ddp", "throughput", *sides, 0.02)
        assert (change.ratio, change.verdict) == (None, None)
        assert change.reason == f"not measured {'here' if sides[0] is None else 'there'}"


def test_a_regression_is_named_on_the_page(folder, other):
    file = other / "comparisons.json"
    records = json.loads(file.read_text())
    (amp,) = [record for record in records if record["variant"] == "amp_bf16"]
    (throughput,) = [e for e in amp["effects"] if e["quantity"] == "throughput"]
    for end in ("median", "low", "high"):
        throughput["ratio"][end] /= 2
    file.write_text(json.dumps(records))
    forget(file)
    found = against(read_side(other), read_side(folder))
    worse = [(c.variant, c.quantity) for c in found.changes if c.verdict == "SLOWER"]
    assert worse == [("amp_bf16", "speedup"), ("amp_bf16", "throughput")]
    assert not {change.verdict for change in found.changes} & {"FASTER", "LESS", "MORE"}
    assert not [*found.statuses, *found.certificates, *found.other_specs]
    page = render(found)
    assert "<code>amp_bf16</code>" in page.split("Better here")[0]
    assert "of them worse here: 2, better here: 0" in page
    assert page.index('class="answer"') < page.index("<table")
    assert re.search('<text[^>]* lang="ko"', page), "of the axes"


def test_both_recommendations_are_shown_side_by_side(folder, other):
    (other / "summary.json").unlink()
    found = against(read_side(folder), read_side(other))
    assert found.here.recommended == ["amp_bf16"]
    assert found.here.speedup is not None
    assert found.there.recommended is None
    assert "<code>amp_bf16</code> <data" in render(found)
    assert re.findall(r"Here</span>.*?unit..([^<]*)", render(found)) == ["(tokens/s)"]


def test_what_is_recommended_is_what_the_own_page_recommends(folder, other):
    """Also if that is a variant that is faster than what the search found, or of an earlier version."""
    search = StudyResults(other).search.model_copy(
        update={"status": "baseline", "parts": [], "certificate": None, "waterfall": []}
    )
    write(other / "search.json", search)
    answer = read_answer(StudyResults(other))
    summary = answer.model_dump(mode="json", exclude={"stages"}) | {"earlier": 1}
    write(other / "summary.json", json.dumps(summary))
    found = against(read_side(other), read_side(folder)).here
    assert not answer.searched
    assert (found.recommended, found.speedup) == (["amp_bf16"], answer.speedup)


def test_speed_ups_over_another_baseline_are_not_compared(folder, other):
    file = other / "runs/single/spec.json"
    spec = json.loads(file.read_text())
    file.write_text(json.dumps(spec | {"training": spec["training"] | {"clip_norm": 7.0}}))
    forget(file)
    found = against(read_side(other), read_side(folder))
    assert found.other_specs == ["single"]
    assert "amp_bf16" in {change.variant for change in found.changes}
    assert "speedup" not in {change.quantity for change in found.changes}


def test_without_comparisons_throughputs_are_those_of_single_runs(folder, other):
    shutil.rmtree(other / "turns")
    assert against(read_side(folder), read_side(folder)).throughput_from == "turns"
    found = against(read_side(folder), read_side(other))
    assert found.throughput_from == "runs"
    (rate,) = [c for c in found.changes if (c.variant, c.quantity) == ("single", "throughput")]
    assert rate.here == read_side(folder).variants["single"].tokens_per_second
    assert "drift of the machine affects these numbers" in render(found)


def test_records_of_results_are_compared_by_their_claims(folder, other):
    """docs/records keeps no runs, run specs and turns."""
    for name in ("turns", "runs"):
        shutil.rmtree(other / name)
    file = other / "claims.json"
    file.write_text(file.read_text().replace('"REPRODUCED"', '"REFUTED"'))
    forget(file)
    found = against(read_side(folder), read_side(other))
    assert found.only_here
    assert [(claim.here, claim.there) for claim in found.claims] == [("REPRODUCED", "REFUTED")]
    assert "there → here" in render(found)


def test_runs_of_several_commits_have_no_single_one(folder):
    side = read_side(folder)
    found = against(side, side)
    page = render(found.model_copy(update={"here": found.here.model_copy(update={"commit": None})}))
    assert "no commit, or more than one" in page
    assert "<code>abc1234</code>" in page


def test_a_throughput_from_another_device_has_no_verdict(folder, other):
    file = other / "machine/hardware.json"
    file.write_text(file.read_text().replace("Example GPU", "Another GPU"))
    assert against(read_side(folder), read_side(other)).same_device, "no variant used it"
    file.write_text(file.read_text().replace("Example CPU", "Another CPU"))
    found = against(read_side(folder), read_side(other))
    assert not found.same_device
    assert {c.verdict for c in found.changes if c.quantity == "throughput"} == {None}
    others = sum(change.verdict is not None for change in found.changes)
    assert f"Numbers with a verdict: {others}, of them" in render(found)


def test_results_without_claims_or_gpus_are_compared(folder, other):
    (other / "claims.json").unlink()
    file = other / "machine/hardware.json"
    hardware = json.loads(file.read_text()) | {"gpus": []}
    file.write_text(json.dumps(hardware))
    found = against(read_side(folder), read_side(other))
    assert found.changes
    assert read_side(other).hardware.devices == hardware["cpu"]


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder of results"):
        read_side(tmp_path)


def test_fields_that_have_been_removed_since_are_ignored(folder, other):
    """But those of run specs are not: a setting that is gone may have changed the training."""

    def earlier(file: Path, field: str) -> None:
        records = json.loads(file.read_text())
        for one in records if isinstance(records, list) else [records]:
            (one if not field else one[field])["load_average"] = 1.0
        file.write_text(json.dumps(records))
        forget(file)

    earlier(other / "study.json", "search")
    earlier(other / "comparisons.json", "")
    for file in (*other.glob("runs/*/metrics.json"), *other.glob("turns/**/*.json")):
        earlier(file, "")
    job = {"here": folder, "there": other, "output": other / "against.json"}
    AgainstJob(**job).run(None)
    assert json.loads(job["output"].read_text())["changes"]
    earlier(other / "runs/single/spec.json", "training")
    with pytest.raises(ConfigError, match=r"load_average(?s:.*)make those results again with this"):
        AgainstJob(**job).run(None)
