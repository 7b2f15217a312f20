"""The sections on profiles, on layers and on the reasons for differences."""

import re
import shutil
from typing import Any

import pytest
from drawn import rows_of, section, texts, words
from profile_builders import step_rows
from report_builders import ask, changed
from traces import break_down, event_table, mark, talk, work

from schemas.results import Breakdown
from tests.records import record
from transformer_core.report.page import draw
from transformer_core.report.sections import layers
from transformer_core.report.sections.profiles import profiles_context, shown, telling
from transformer_core.report.sections.why import reasons, why_context
from transformer_core.trace.breakdown.summary import summarise
from transformer_core.trace.breakdown.timeline import Timeline, read_timeline
from transformer_core.trace.events.arrow import write_events


def test_profiles_of_variants_are_means_over_steps_and_ranks(results):
    found = profiles_context(results)
    assert [breakdown.name for breakdown in found["without"]] == ["ddp"]
    assert [profile.name for profile in found["noted"]] == ["accum4_sync"]
    single = found["profiles"]["single"]
    assert single.communication_ms is None
    assert single.milliseconds(2_000_000) == 1.0  # of two steps
    both = found["profiles"]["accum4_sync"]
    assert both.steps == 4
    assert both.summary.step_seconds == pytest.approx(100e-6)
    assert both.summary.compute == pytest.approx(0.51)
    # Ten of the 20 or 25 microseconds of the all-reduce overlap backward.
    assert both.summary.hidden_communication == pytest.approx(20 / 45)
    assert both.communication_ms == pytest.approx(0.0225)
    (use,) = both.summary.collectives
    assert both.per_step(use.count) == 1
    assert both.milliseconds(use.transfer_ns) == pytest.approx(0.020)
    assert both.milliseconds(use.waiting_ns) == pytest.approx(0.0025)


def test_few_variants_are_shown_in_detail(results, drawing):
    names = telling(results)
    assert names[0] == results.study.baseline
    assert len(names) == len(set(names)) <= 4
    assert set(names) <= set(shown(results))
    assert "accum4_sync" in names  # another way of dividing the work
    labels = texts(drawing("profile_partition"))
    assert labels.count("exposed communication") == 1  # once, though several variants have it
    assert {"computation", "idle", "single", "wall time of a profiled step (ms)"} <= set(labels)


def test_traces_of_the_user_are_rows_and_figures(copied):
    rows = [
        work("gemm", 10, 60, operator_class="contraction", phase="forward", step=0),
        mark("step", 0, 100, step=0),
        mark("forward", 0, 70, phase="forward"),
    ]
    folder = copied / "profiles" / "mine"
    folder.mkdir(parents=True)
    write_events(folder / "events.parquet", event_table(rows))
    devices = break_down(event_table(rows))
    found = {"name": "mine", "status": "ok", "source": "kineto", "summary": summarise(devices)}
    breakdown = record(Breakdown, devices=devices, **found)
    (folder / "breakdown.json").write_text(breakdown.model_dump_json())
    brought = ask(copied, traces={"mine": ["rank0.json"]})
    found = profiles_context(brought)
    assert [profile.name for profile in found["detailed"]][-1] == "mine"
    assert found["brought"] == ["mine"]
    assert [row["window_ns"] for row in rows_of("profiles", brought)][-1] == 100
    assert rows_of("operators", brought)[-1]["time_ns"] == 50
    assert "mine" in draw("profile_partition", brought)
    assert "mine" in draw("profile_timelines", brought)


def test_any_number_of_traces_is_drawn(copied):
    names = [f"mine{number}" for number in range(12)]
    for name in names:
        shutil.copytree(copied / "profiles/single", copied / "profiles" / name)
    brought = ask(copied, traces={name: ["rank0.json"] for name in names})
    assert {"single", *names} <= set(texts(draw("operator_roofline", brought)))


@pytest.fixture
def timeline_of(tmp_path):
    """The timeline read from events."""

    def written(*rows: dict[str, Any]) -> Timeline | None:
        write_events(tmp_path / "events.parquet", event_table(rows))
        return read_timeline(tmp_path / "events.parquet")

    return written


def test_a_timeline_has_phases_and_spans(timeline_of):
    timeline = timeline_of(*step_rows(0, 0, 1))
    assert (timeline.window_ns, [lane.label for lane in timeline.lanes]) == (200_000, ["operators"])
    assert timeline.phases[0] == [
        ("forward", 10_000, 50_000),
        ("loss", 50_000, 60_000),
        ("backward", 60_000, 160_000),
    ]
    (lane,) = timeline.lanes
    width = 200_000 // 300 + 1
    (gemm, backward) = lane.spans["contraction"]
    for found, true in zip((*gemm, *backward), (20_000, 44_000, 64_000, 120_000), strict=True):
        assert abs(found - true) <= width
    assert "communication" not in lane.spans


def test_ranks_with_their_own_clocks_are_drawn_side_by_side(timeline_of):
    """Nsight Systems counts the time of each rank from its own start."""
    rows = [
        row | {"rank": rank, "t0_ns": row["t0_ns"] + late, "t1_ns": row["t1_ns"] + late}
        for rank, late in ((0, 0), (1, 10**9))
        for row in (*step_rows(0, 0, 1), talk("all_reduce", 150_000, 160_000, step=0))
    ]
    timeline = timeline_of(*rows)
    assert timeline.phases[0] == timeline.phases[1] != []
    first, second = ([lane.spans for lane in timeline.lanes if lane.rank == r] for r in (0, 1))
    assert first == second != []


def test_a_timeline_of_later_ranks(timeline_of):
    rows = [row | {"rank": rank + 3} for rank in range(3) for row in step_rows(0, 0, 1)]
    assert [lane.rank for lane in timeline_of(*rows).lanes] == [3, 4]


def test_a_column_is_filled_by_its_largest_part(timeline_of):
    """Ten thousand short events become one span if they leave few gaps, and none otherwise."""
    usual = {"device": "cuda:0", "step": 0}
    dense = [
        work("a", t, t + 9, operator_class="element_wise", **usual) for t in range(0, 50_000, 10)
    ]
    sparse = [
        work("b", t, t + 2, operator_class="contraction", **usual)
        for t in range(50_000, 100_000, 10)
    ]
    (lane,) = timeline_of(mark("step", 0, 100_000), *dense, *sparse).lanes
    assert lane.label == "cuda:0 stream 7"
    assert list(lane.spans) == ["element_wise"]
    assert len(lane.spans["element_wise"]) == 1


def test_a_timeline_has_the_busiest_streams_and_needs_steps(timeline_of):
    rows = [
        work("k", 0, 10 * (stream + 1), stream=stream, operator_class="other", step=0)
        for stream in range(6)
    ]
    lanes = timeline_of(mark("step", 0, 1000), *rows).lanes
    assert [lane.label for lane in lanes] == [f"cuda:0 stream {n}" for n in (3, 4, 5)]
    assert timeline_of(work("k", 0, 10)) is None
    assert timeline_of(mark("step", 5, 5), work("k", 0, 3)) is None


def test_tables(results):
    rows = rows_of("profiles", results)
    by_variant = {row["variant"]: row for row in rows}
    assert list(by_variant) == list(results.variants)
    assert by_variant["ddp"]["status"] == "unsupported"
    assert by_variant["ddp"]["window_ns"] is None
    assert [row["rank"] for row in rows if row["variant"] == "accum4_sync"] == [0, 1]
    parts = ("compute_ns", "exposed_communication_ns", "idle_ns")
    assert sum(by_variant["accum4_sync"][part] for part in parts) == 200_000
    operators = rows_of("operators", results)
    classes = [row["operator_class"] for row in operators if row["variant"] == "single"]
    assert classes == ["contraction", "normalization", "element_wise"]


def test_every_comparison_of_profiled_variants_has_its_reason(results):
    found = {(r.comparison.variant, r.comparison.reference): r.difference for r in reasons(results)}
    profiled = {name for name, found in results.breakdowns.items() if found.devices}
    expected = {
        (item.variant, item.reference)
        for item in results.all_comparisons
        if {item.variant, item.reference} <= profiled
    }
    assert found.keys() == expected
    other = found["accum4_sync", results.study.baseline]
    assert (other.first, other.second) == (results.study.baseline, "accum4_sync")
    assert sum(part.difference_ms for part in other.parts) == pytest.approx(
        other.step.difference_ms
    )
    assert [change.name for change in other.collectives] == ["all_reduce"]
    rows = [row for row in rows_of("differences", results) if row["variant"] == "accum4_sync"]
    (step,) = [row for row in rows if row["kind"] == "step"]
    parts = [row["difference_ms"] for row in rows if row["kind"] == "parts"]
    assert sum(parts) == pytest.approx(step["difference_ms"])


def test_differences_agree_with_the_ratios_of_the_turns(results):
    baseline = results.study.baseline
    found = [r for r in reasons(results) if r.comparison.reference == baseline and r.timed]
    assert found
    for reason in found:
        step = reason.timed.step
        assert step.first_ms / step.second_ms == pytest.approx(reason.comparison.speedup.median)
        parts = [part.difference_ms for part in reason.timed.parts]
        assert sum(parts) == pytest.approx(step.difference_ms)


def test_the_fastest_with_a_reason_is_the_fastest_of_those_profiled(results):
    """A faster variant may have no profile."""
    assert "A step of amp_bf16 , the fastest of those profiled, spends" in words("why", results)


def test_a_difference_that_the_turns_leave_open_gets_no_reason(results):
    name = next(r.comparison.variant for r in reasons(results) if r.timed and r.timed.explanation)
    told = re.compile(rf">{name}</code></a></th>.*?</tr>", re.DOTALL)
    assert "computation" in " ".join(told.findall(section("why", results)))
    open_ratio = {"low": 0.5, "high": 2.0}
    undecided = [
        each.model_copy(
            update={
                "effects": [
                    e.model_copy(
                        update={"ratio": e.ratio and e.ratio.model_copy(update=open_ratio)}
                    )
                    for e in each.effects
                ]
            }
        )
        for each in results.all_comparisons
    ]
    rows = told.findall(section("why", changed(results, all_comparisons=undecided)))
    assert rows
    assert "computation" not in " ".join(rows)


def test_causes_of_waiting_and_critical_paths(results):
    found = why_context(results)
    bound = {bound.name: bound for bound in found["bounds"]}["accum4_sync"]
    parts = ("device", "link", "copies", "input", "host", "other")
    assert sum(bound.share(part) for part in parts) == pytest.approx(1)
    assert bound.share("link") == pytest.approx(bound.parts.link_ns / bound.parts.window_ns)
    assert (bound.delay_ms, bound.queue) == (None, None), "a CPU launches nothing"
    path = next(path for path in found["paths"] if path.name == "accum4_sync")
    assert sum(part.time_ns for part in path.parts) == path.window_ns
    if best := found["best"]:
        assert best.comparison.verdict == "FASTER"


def test_the_tree_of_layers(results):
    found = layers.layers_context(results)
    tree = found["trees"][0]
    assert tree.name == results.study.baseline
    assert [layer.path for layer in tree.layers] == [
        *("model", "model/encoder", "model/encoder/linear", "model/encoder/norm")
    ]
    model, encoder, linear, norm = tree.layers
    assert [layers.depth(layer) for layer in tree.layers] == [0, 1, 2, 2]
    assert model.time_ns == encoder.time_ns == linear.time_ns + norm.time_ns
    assert tree.share(model) == 1.0
    assert found["largest"].path == "model/encoder"
    assert tree.per_step(model.held_bytes) == 4096
    (use, share), *_ = tree.shapes
    assert (use.operator, use.number_format) == ("aten::mm", "fp32")
    assert share is None or share > 0
    rows = [row for row in rows_of("layers", results) if row["variant"] == tree.name]
    assert [row["path"] for row in rows] == [layer.path for layer in tree.layers]
    assert {row["operator"] for row in rows_of("shapes", results)} == {"aten::mm"}
